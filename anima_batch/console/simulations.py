"""Simulated denoising on stdout, as a table or JSON; all of it says that it is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anima_batch.board import Simulation, Weighed
from anima_batch.console.results import show_json, show_line, show_table


def show(simulations: Sequence[Simulation], policy: str, weighed: Sequence[Weighed], *, json: bool) -> None:
    """All choices, or one with what it rests on."""
    if json and weighed:
        show_json({**simulation_json(simulations[0], policy), **simulation_details(simulations[0], weighed)})
    elif json:
        show_json({"simulated": True, "choices": [simulation_json(found, policy) for found in simulations]})
    else:
        show_simulations(simulations, policy)
        if weighed:
            show_assumptions(weighed)


def simulation_json(found: Simulation, policy: str) -> dict[str, Any]:
    """One choice."""
    choice = found.choice
    resources = sorted({resource for event in found.events for resource in event.activity.resources})
    return {
        "simulated": True,
        "board": found.table.name,
        "policy": policy,
        "steps": len(found.passes),
        "computed_steps": [index for index, passes in enumerate(found.passes, start=1) if passes],
        "staging": choice.staging,
        "pinned": choice.pinned if choice.staging in ("pinned", "cached") else None,
        "interleave": choice.interleave,
        "cores": choice.cores,
        "contexts_per_stream": choice.contexts_per_stream,
        "denoise_seconds": found.denoise_seconds,
        "computed_step_seconds": found.computed_step_seconds,
        "step_seconds": list(found.step_seconds),
        "lifecycle_seconds": found.lifecycle_seconds,
        "busy": {resource: found.busy_share(resource) for resource in resources},
        "hits": found.hits,
        "misses": found.misses,
        "peak_bytes": found.peak_bytes,
        "peak_sessions": found.peak_sessions,
        "fits": found.fits,
        "decode_seconds": found.table.decode_seconds,
    }


def simulation_details(found: Simulation, weighed: Sequence[Weighed]) -> dict[str, Any]:
    """What one choice rests on, and the timeline of a computed step in seconds from the image's beginning."""
    return {
        "sources": list(found.table.sources),
        "assumptions": [
            {
                "holds": entry.assumption.holds,
                "otherwise": entry.assumption.otherwise,
                "denoise_seconds": entry.denoise_seconds,
                "added_seconds": entry.added_seconds,
            }
            for entry in weighed
        ],
        "timeline": [
            {
                "kind": event.activity.kind,
                "step": event.activity.step,
                "subgraph": event.activity.subgraph,
                "stream": event.activity.stream,
                "resources": list(event.activity.resources),
                "start": event.start,
                "end": event.end,
            }
            for event in found.events_of_step(found.shown_step)
        ],
    }


def show_simulations(simulations: Sequence[Simulation], policy: str) -> None:
    """One row a choice, under what is simulated."""
    table, passes = simulations[0].table, simulations[0].passes
    computed = sum(map(bool, passes))
    show_line(
        f"simulated: {table.machine}, {table.width}x{table.height}, {policy}, {computed} of {len(passes)} computed"
    )
    rows = [
        (
            found.choice.name,
            f"{found.denoise_seconds:.1f}",
            f"{found.computed_step_seconds:.2f}",
            f"{100 * found.accelerator_share:.1f}",
            f"{100 * found.busy_share('host'):.1f}",
            f"{100 * found.busy_share('stager'):.1f}",
            f"{found.lifecycle_seconds:.1f}",
            f"{found.hits} of {found.hits + found.misses}",
            f"{found.peak_bytes / 1e6:.0f}",
            {True: "yes", False: "no", None: "unknown"}[found.fits],
        )
        for found in simulations
    ]
    headers = (
        "simulated",
        "denoise s",
        "step s",
        "busy %",
        "host %",
        "stager %",
        "lifecycle s",
        "hits",
        "open MB",
        "fits",
    )
    show_table(headers, rows)
    for source in table.sources:
        show_line(f"from: {source}")


def show_assumptions(weighed: Sequence[Weighed]) -> None:
    """What a choice rests on, and what it costs where that does not hold."""
    rows = [
        (
            entry.assumption.holds,
            entry.assumption.otherwise,
            f"{entry.denoise_seconds:.1f}",
            f"{entry.added_seconds:+.1f}",
        )
        for entry in weighed
    ]
    show_table(("assumed", "if instead", "simulated denoise s", "more s"), rows)
