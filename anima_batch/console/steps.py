"""Measured steps and lifecycles on stdout, as tables or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from anima_batch.bench import Lifecycle, StepComparison
from anima_batch.console.results import show_line, show_table


def steps_json(found: Sequence[StepComparison]) -> dict[str, Any]:
    """The timing table, and each choice with its timeline."""
    return {"table": found[0].table.model_dump(mode="json"), "choices": [step_json(entry) for entry in found]}


def step_json(entry: StepComparison) -> dict[str, Any]:
    """One choice; the timeline in seconds from the step's beginning."""
    measure = entry.measure
    return {
        "staging": measure.choice.staging,
        "interleave": measure.choice.interleave,
        "step_seconds": measure.seconds,
        "busy_share": measure.busy_share,
        "timings": asdict(measure.timings),
        "peak_bytes": measure.peak_bytes,
        "latents_xxh3": measure.latents_xxh3,
        "predicted_seconds": entry.predicted_seconds,
        "timeline": [[span.phase, span.name, span.started, span.ended] for span in measure.spans],
    }


def show_steps(found: Sequence[StepComparison]) -> None:
    """One row a choice, the timing table above."""
    table, first = found[0].table, found[0].measure
    show_line(f"{table.machine}, {table.width}x{table.height}, {table.blocks} blocks")
    for branch, times in table.branches.model_dump().items():
        parts = (f"{key.removesuffix('_seconds')} {1e3 * value:.1f}" for key, value in times.items() if key != "bytes")
        show_line(f"{branch}: {times['bytes'] / 1e6:.0f} MB, in ms: {', '.join(parts)}")
    show_line(f"what overlaps takes {table.overlap_slowdown:.2f} times as long")
    rows = [
        (
            entry.measure.choice.name,
            f"{entry.measure.seconds:.2f}",
            f"{100 * entry.measure.busy_share:.1f}",
            f"{entry.measure.timings.run:.2f}",
            f"{entry.measure.timings.load + entry.measure.timings.init + entry.measure.timings.release:.2f}",
            f"{entry.measure.timings.host:.2f}",
            f"{(entry.measure.peak_bytes - first.peak_bytes) / 1e6:+.0f}",
            f"{entry.predicted_seconds:.2f}",
            f"{100 * entry.difference:+.1f}",
            "same" if entry.measure.latents_xxh3 == first.latents_xxh3 else "OTHER",
        )
        for entry in found
    ]
    headers = (
        "measured",
        "step s",
        "busy %",
        "run s",
        "lifecycle s",
        "host s",
        "peak MB",
        "predicted s",
        "off %",
        "bits",
    )
    show_table(headers, rows)
    show_line(f"peak MB: beside {first.peak_bytes / 1e6:.0f} MB of the first, from which the predictions are made")


def lifecycle_json(found: Sequence[Lifecycle]) -> dict[str, Any]:
    """A branch each, and a whole pass."""
    return {"branches": [asdict(entry) for entry in found], "pass_seconds": sum(entry.pass_seconds for entry in found)}


def show_lifecycle(found: Sequence[Lifecycle]) -> None:
    """A row a branch, in milliseconds a graph, and the sums over a pass in seconds."""
    rows = [
        (
            entry.branch,
            entry.graphs,
            f"{entry.bytes / 1e6:.1f}",
            f"{1e3 * entry.load_seconds:.1f}",
            f"{1e3 * entry.init_seconds:.1f}",
            f"{1e3 * entry.release_seconds:.1f}",
            f"{entry.pass_seconds:.2f}",
        )
        for entry in found
    ]
    show_table(("branch", "graphs", "MB", "load ms", "init ms", "release ms", "a pass, s"), rows)
    show_line(f"a pass in all: {sum(entry.pass_seconds for entry in found):.2f} s")
