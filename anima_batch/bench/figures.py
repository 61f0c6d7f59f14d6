"""The figures of residency, block and decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from anima_batch.bench.block import BlockComparison
from anima_batch.bench.chart import Series, draw_chart
from anima_batch.bench.decode import DecodeComparison
from anima_batch.bench.residency import Extrapolation, Plateau
from anima_batch.board import picture
from anima_batch.board.picture import Span

GB, MB = 1e9, 1e6


def save_residency(plateaus: Sequence[Plateau], extrapolation: Extrapolation | None, path: Path) -> None:
    """What is held over time, and over the files that are open, as a PNG; raises UsageError or StorageError."""
    over_time = [
        Series(
            f"pool of {entry.pool}: PSS", [(s.seconds, s.held.pss_bytes / MB) for s in (*entry.piling, *entry.dwelling)]
        )
        for entry in plateaus
    ]
    held = [(entry.file_bytes / GB, entry.pss_growth / GB) for entry in plateaus]
    taken = [(entry.file_bytes / GB, entry.available_drop / GB) for entry in plateaus]
    lines = [Series("PSS, growth at a plateau", held, dots=True), Series("MemAvailable, drop", taken, dots=True)]
    if extrapolation is not None:
        end = extrapolation.file_bytes / GB
        for name, line in (("PSS", extrapolation.pss), ("MemAvailable", extrapolation.available)):
            start = (line.bytes - line.slope * extrapolation.file_bytes) / GB
            text = f"{name}: {extrapolation.graphs} graphs {line.bytes / GB:.2f} ± {line.error / GB:.2f} GB"
            lines.append(Series(text, [(0.0, start), (end, line.bytes / GB)]))
    images = [
        draw_chart("open graphs over time", ("seconds", "MB"), over_time),
        draw_chart("open graphs by the size of their files", ("GB of files", "GB held"), lines),
    ]
    picture.save_images(images, path)


def save_block(found: BlockComparison, path: Path) -> None:
    """The phases of both forms, one after the other, as a PNG; raises UsageError or StorageError."""
    spans, ends = [], []
    for measure in (found.split, found.fused):
        at = 0.0
        for phase, seconds in asdict(measure.timings).items():
            spans.append(Span(measure.form, phase, at, at + seconds))
            at += seconds
        ends.append(at)
    title = f"measured: a block, both CFG streams: split {ends[0]:.3f} s, fused {ends[1]:.3f} s"
    picture.save_images([picture.draw_timeline(title, spans, (0.0, max(ends)))], path)


def save_decode(found: Sequence[DecodeComparison], path: Path) -> None:
    """Time over memory of each decoding, as a PNG; raises UsageError or StorageError."""
    series = []
    for threads in dict.fromkeys(entry.decoding.threads for entry in found):
        rows = sorted(
            (entry for entry in found if entry.decoding.threads == threads), key=lambda e: e.decoding.need_bytes
        )
        names = ", ".join(entry.decoding.how for entry in rows)
        points = [(entry.decoding.need_bytes / MB, entry.decoding.seconds) for entry in rows]
        series.append(Series(f"{threads or 'all'} threads, from the left: {names}", points))
    picture.save_images([draw_chart("decoding", ("MB needed", "seconds"), series)], path)
