"""The timeline of a step as a picture: who was busy when."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from anima_batch.board.simulation import Simulation
from anima_batch.errors import UsageError
from anima_batch.files import write_atomic

WIDTH, MARGIN, NAMES, ROW, GAP, LINE, FONT_SIZE = 1500, 16, 92, 30, 10, 20, 14
CLOSE_UP = 12  # parts of a step, of which one is shown again, larger
COLOURS = {  # of each kind of work, for the first CFG stream and the second
    "load": ("#9ecae1", "#9ecae1"),
    "init": ("#4292c6", "#4292c6"),
    "release": ("#08519c", "#08519c"),
    "run": ("#238b45", "#a1d99b"),
    "host": ("#d94801", "#fdae6b"),
}
LEGEND = (
    *((kind, COLOURS[kind][0]) for kind in ("load", "init", "release")),
    *((f"run, stream {stream + 1}", COLOURS["run"][stream]) for stream in (0, 1)),
    *((f"host, stream {stream + 1}", COLOURS["host"][stream]) for stream in (0, 1)),
)


@dataclass(frozen=True, slots=True)
class Span:
    """Work of a kind (of COLOURS) that one row was busy with, in seconds."""

    row: str
    kind: str
    start: float
    end: float
    stream: int = 0


def save_simulations(simulations: Iterable[Simulation], path: Path) -> None:
    """A computed step of each, one below the other, as a PNG; raises UsageError or StorageError."""
    save_images([draw_simulation(found) for found in simulations], path)


def save_images(images: Sequence[Image.Image], path: Path) -> None:
    """Timelines, one below the other, as a PNG; raises UsageError or StorageError."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"--figure: must end in .png, got {path}")
    tops = [0, *itertools.accumulate(image.height for image in images)]
    whole = Image.new("RGB", (WIDTH, tops[-1]), "white")
    for image, top in zip(images, tops, strict=False):
        whole.paste(image, (0, top))
    buffer = io.BytesIO()
    whole.quantize(32).save(buffer, "PNG", optimize=True)
    write_atomic(path, buffer.getvalue())


def draw_simulation(found: Simulation) -> Image.Image:
    """One computed step of it."""
    step = found.shown_step
    begin = sum(found.step_seconds[: step - 1])
    spans = []
    for event in found.events:
        if event.end > event.start:
            kind = event.activity.kind if event.activity.kind in COLOURS else "host"
            row = event.activity.resources[0]
            spans.append(Span(row, kind, event.start, event.end, event.activity.stream or 0))
    seconds = found.step_seconds[step - 1]
    title = f"simulated: {found.table.machine}: step {step}, {found.choice.name}: {seconds:.2f} s"
    return draw_timeline(title, spans, (begin, begin + seconds))


def draw_timeline(title: str, spans: Sequence[Span], period: tuple[float, float]) -> Image.Image:
    """All of the period on top, a part from its middle below, a row for each that was busy; the title says what it is.

    Seconds count from the period's beginning.
    """
    rows = sorted({span.row for span in spans})
    panel = len(rows) * ROW + LINE + GAP
    image = Image.new("RGB", (WIDTH, MARGIN + 2 * LINE + GAP + 2 * (panel + LINE)), "white")
    canvas, font = ImageDraw.Draw(image), ImageFont.load_default(size=FONT_SIZE)
    canvas.text((MARGIN, MARGIN), title, "black", font)
    _draw_legend(canvas, font, MARGIN + LINE)
    start, end = period
    middle, half = (start + end) / 2, (end - start) / CLOSE_UP / 2
    top = MARGIN + 2 * LINE + GAP
    for shown in (period, (middle - half, middle + half)):
        _draw_panel(canvas, font, top, rows, (spans, shown, start))
        top += panel + LINE
    return image


def _draw_legend(canvas: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, top: int) -> None:
    x = MARGIN
    for name, colour in LEGEND:
        canvas.rectangle((x, top + 3, x + 12, top + 15), colour)
        canvas.text((x + 18, top), name, "#333333", font)
        x += 40 + int(canvas.textlength(name, font))


def _draw_panel(
    canvas: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    top: int,
    rows: Sequence[str],
    content: tuple[Iterable[Span], tuple[float, float], float],
) -> None:
    """The rows between two times with an axis below them, which counts from the third."""
    spans, (start, end), zero = content
    left, right = MARGIN + NAMES, WIDTH - MARGIN
    scale = (right - left) / (end - start)
    for number, row in enumerate(rows):
        y = top + number * ROW
        canvas.rectangle((left, y, right, y + ROW - 6), "#f2f2f2")
        canvas.text((MARGIN, y + 3), row, "black", font)
    for span in spans:
        if span.end > start and span.start < end:
            y = top + rows.index(span.row) * ROW
            x = (left + (max(span.start, start) - start) * scale, left + (min(span.end, end) - start) * scale)
            # A whole pixel of its own at the most: what is shorter must not hide what follows.
            canvas.rectangle(
                (math.floor(x[0]), y, max(math.floor(x[0]), math.ceil(x[1]) - 1), y + ROW - 6),
                COLOURS[span.kind][span.stream],
            )
    y = top + len(rows) * ROW
    for tick in list_ticks(start - zero, end - zero):
        x0 = left + (tick + zero - start) * scale
        canvas.line((x0, y - 4, x0, y + 2), "#666666")
        canvas.text((x0 - 4, y + 2), f"{tick:g} s", "#666666", font)


def list_ticks(start: float, end: float) -> list[float]:
    """About ten round numbers between two."""
    rough = (end - start) / 10
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = math.ceil(start / step)
    return [round(number * step, 9) for number in range(first, math.floor(end / step) + 1)]
