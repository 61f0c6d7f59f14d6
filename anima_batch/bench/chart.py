"""Measured points as a picture: axes, and a line or dots for each series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from anima_batch.board.picture import list_ticks

WIDTH, HEIGHT, MARGIN, LEFT, LINE, FONT_SIZE = 1500, 460, 16, 100, 20, 14
COLOURS = ("#1f77b4", "#d94801", "#238b45", "#6a51a3", "#b8860b", "#d6279c", "#17becf", "#7f7f7f")


@dataclass(frozen=True)
class Series:
    """Points (x, y) under a name; `dots` are not joined."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True)
class Frame:
    """Where values lie on the canvas: those between `low` and `high`, (x, y) each, between two corners."""

    low: tuple[float, float]
    high: tuple[float, float]
    top: int

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Pixels from the left and from the top."""
        right, bottom = WIDTH - MARGIN, self.top + HEIGHT
        across = (x - self.low[0]) / (self.high[0] - self.low[0])
        up = (y - self.low[1]) / (self.high[1] - self.low[1])
        return LEFT + across * (right - LEFT), bottom - up * HEIGHT


def draw_chart(title: str, axes: tuple[str, str], series: Sequence[Series]) -> Image.Image:
    """The series over one pair of axes, named across and up, which begin at 0 or below."""
    top = MARGIN + (2 + len(series)) * LINE
    image = Image.new("RGB", (WIDTH, top + HEIGHT + 3 * LINE), "white")
    canvas, font = ImageDraw.Draw(image), ImageFont.load_default(size=FONT_SIZE)
    points = [point for entry in series for point in entry.points]
    low, high = _span([x for x, _ in points]), _span([y for _, y in points])
    frame = Frame((low[0], high[0]), (low[1], high[1]), top)
    canvas.text((MARGIN, MARGIN), title, "black", font)
    for number, entry in enumerate(series):
        y = MARGIN + (1 + number) * LINE
        canvas.rectangle((MARGIN, y + 3, MARGIN + 12, y + 15), COLOURS[number % len(COLOURS)])
        canvas.text((MARGIN + 18, y), entry.name, "#333333", font)
    _draw_axes(canvas, font, frame, axes)
    for number, entry in enumerate(series):
        _draw_series(canvas, frame, entry, COLOURS[number % len(COLOURS)])
    return image


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(0.0, *values), max(0.0, *values)
    return low, high + (0.05 * (high - low) or 1.0)


def _draw_axes(
    canvas: ImageDraw.ImageDraw,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    frame: Frame,
    axes: tuple[str, str],
) -> None:
    bottom = frame.top + HEIGHT
    canvas.text((WIDTH // 2, bottom + 2 * LINE), axes[0], "black", font)
    canvas.text((MARGIN, frame.top - LINE), axes[1], "black", font)
    for tick in list_ticks(frame.low[0], frame.high[0]):
        x, _ = frame.place(tick, frame.low[1])
        canvas.line((x, frame.top, x, bottom), "#e6e6e6")
        canvas.text((x - 4, bottom + 4), f"{tick:g}", "#666666", font)
    for tick in list_ticks(frame.low[1], frame.high[1]):
        _, y = frame.place(frame.low[0], tick)
        canvas.line((LEFT, y, WIDTH - MARGIN, y), "#e6e6e6")
        canvas.text((MARGIN, y - 8), f"{tick:g}", "#666666", font)


def _draw_series(canvas: ImageDraw.ImageDraw, frame: Frame, entry: Series, colour: str) -> None:
    places = [frame.place(*point) for point in entry.points]
    if not entry.dots:
        canvas.line(places, colour, 2)
    for x, y in places:
        size = 5 if entry.dots else 2
        canvas.ellipse((x - size, y - size, x + size, y + size), colour)
