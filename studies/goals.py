"""What a rehearsal must show: rows of a table, each a figure beside its goal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GB = 1e9
OFFICIAL_TENSORS = [685, 310, 194]
TENSORS_OF_A_BLOCK = 20

Figures = Mapping[str, Mapping[str, Any]]  # by the name under which a rehearsal keeps them


@dataclass(frozen=True)
class Row:
    """One line of the table; `ok` is None for what has no goal."""

    what: str
    figure: str
    goal: str = ""
    ok: bool | None = None


def list_rows(figures: Figures, *, blocks: int, small: bool) -> list[Row]:
    """Everything that was measured; goals for time, memory and numbers are those of the official dimensions."""
    rows = [*_list_commands(figures, blocks, small=small), *_list_stages(figures)]
    if "diffusers step 1" in figures:
        rows += [*_list_ratios(figures), *_list_differences(figures)]
    return rows


def _list_commands(figures: Figures, blocks: int, *, small: bool) -> Iterator[Row]:
    tensors = figures["weights"]["tensors"]
    expected = [OFFICIAL_TENSORS[0] + TENSORS_OF_A_BLOCK * (blocks - 28), *OFFICIAL_TENSORS[1:]]
    counts = " + ".join(map(str, tensors))
    yield Row("tensors of the three files", counts, *(("", None) if small else _equal(tensors, expected)))
    yield _peak("convert", figures["convert"], 6.0)
    resumed, unbroken = figures["resumed"], figures["unbroken"]
    yield Row(
        "run, kill -9 in a step, run again",
        f"{figures['killed']['steps']} steps kept, goes on at step {resumed['first_step']} of {resumed['steps']}",
        "no step lost",
        resumed["first_step"] > figures["killed"]["steps"],
    )
    yield Row(
        "the same run unbroken, all sessions open",
        "the same bits" if resumed["result"] == unbroken["result"] else "other bits",
        "the same bits",
        resumed["result"] == unbroken["result"],
    )
    yield _peak("the resumed run: denoise on demand, decode", resumed, 1.5)
    for name in ("verify", "audit"):
        yield Row(name, f"{figures[name]['seconds']:.1f} s", "no difference", figures[name]["code"] == 0)


def _list_stages(figures: Figures) -> Iterator[Row]:
    yield _peak("encode two prompts", _merge(figures, "encode"), 3.0)
    yield _peak("one step with guidance, sessions on demand", _merge(figures, "step-on-demand"), 1.5)
    yield _peak("one step with guidance, all sessions open", _merge(figures, "step-resident"), None)
    yield _peak("decode", _merge(figures, "decode"), 1.0)


def _list_ratios(figures: Figures) -> Iterator[Row]:
    for name, stage, limit in (
        ("step-resident", "step", 0.48),
        ("step-on-demand", "step", None),
        ("decode", "decode", 0.32),
    ):
        ours, theirs = (_merge(figures, side) for side in (name, f"diffusers {stage}"))
        ratio = ours["seconds"] / theirs["seconds"]
        figure = f"{ratio:.3f} x ({ours['seconds']:.2f} s, {theirs['seconds']:.2f} s)"
        yield Row(f"{name} / Diffusers", figure, *(("", None) if limit is None else _at_most(ratio, limit, " x")))
    products, step = (_merge(figures, name)["seconds"] for name in ("products", "diffusers step"))
    yield Row("a step's matrix products alone, by NumPy / Diffusers", f"{products / step:.3f} x ({products:.2f} s)")
    for stage in ("step", "decode"):
        yield _peak(f"Diffusers: {stage}", _merge(figures, f"diffusers {stage}"), None)


def _list_differences(figures: Figures) -> Iterator[Row]:
    trace, encode = figures["diffusers trace 1"], figures["diffusers encode 1"]
    for what, cosine in (
        ("contexts of two prompts", encode["cosine"]),
        ("residual stream, the worst block", min(row["cosine"] for row in trace["blocks"])),
        ("velocity of one pass", trace["velocity"]["cosine"]),
    ):
        yield Row(f"{what}: cosine to Diffusers", f"{cosine:.8f}", ">= 0.99999", cosine >= 0.99999)
    for weights, limit in (("float32", 1e-4), ("float16", 1e-3)):
        share = figures["picture differences"][weights]
        yield Row(f"decode, {weights} weights: largest difference", f"{share:.1e}", *_at_most(share, limit, ""))


def _peak(what: str, figure: Mapping[str, Any], limit: float | None) -> Row:
    peak = figure["peak_bytes"] / GB
    goal = ("", None) if limit is None else _at_most(peak, limit, " GB")
    return Row(what, f"{figure['seconds']:.1f} s, peak {peak:.2f} GB", *goal)


def _merge(figures: Figures, name: str) -> dict[str, float]:
    """Over the rounds of a stage: the median of its last seconds, and the highest peak."""
    rounds = [figure for key, figure in figures.items() if key.rpartition(" ")[0] == name]
    seconds = statistics.median(figure["seconds"][-1] for figure in rounds)
    return {"seconds": seconds, "peak_bytes": max(figure["peak_bytes"] for figure in rounds)}


def _at_most(value: float, limit: float, unit: str) -> tuple[str, bool]:
    return f"<= {limit:g}{unit}", value <= limit


def _equal(value: Sequence[int], wanted: Sequence[int]) -> tuple[str, bool]:
    return " + ".join(map(str, wanted)), list(value) == list(wanted)


def draw_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns of even width."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [[*head], ["-" * width for width in widths], *rows]
    return "\n".join(
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |" for line in lines
    )


def draw_rows(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    words = {True: "ok", False: "MISSED", None: ""}
    return draw_table(("what", "figure", "goal", ""), [(row.what, row.figure, row.goal, words[row.ok]) for row in rows])


def draw_blocks(trace: Mapping[str, Any]) -> str:
    """The table of the residual stream, block by block."""
    names = ["embedding", *(f"block {index}" for index in range(len(trace["blocks"]) - 1)), "velocity"]
    rows = [
        (name, f"{row['cosine']:.9f}", f"{row['difference']:.1e}", f"{row['largest']:.1f}")
        for name, row in zip(names, [*trace["blocks"], trace["velocity"]], strict=True)
    ]
    return draw_table(("after", "cosine", "largest difference", "largest value"), rows)
