"""Draws docs/demo.png from what `anima-batch run jobs/demo.toml` made: prompts down, settings across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from PIL import Image, ImageDraw, ImageFont

from anima_batch.batch import open_batch
from anima_batch.job import ImageRequest
from anima_batch.store import Manifest, read_manifest

ROOT = Path(__file__).parents[1]
_SCALE = 2  # pixels a side for one of a picture
_GAP, _LINE, _FONT_SIZE = 8, 19, 15


@dataclass(frozen=True)
class Cell:
    """A picture of the grid with its manifest."""

    picture: Image.Image
    manifest: Manifest

    @property
    def request(self) -> ImageRequest:
        """What was asked for."""
        return self.manifest.request

    @property
    def passes(self) -> int:
        """Transformer evaluations."""
        return sum(step.passes for step in self.manifest.steps)


def main() -> None:
    """Reads the job's pictures and manifests and writes the grid."""
    batch = open_batch(ROOT / "jobs/demo.toml", ROOT, draw=False)
    rows: dict[str, list[Cell]] = {}
    for image, request_id in batch.identified_images():
        stem = image.stem(request_id)
        with Image.open(batch.outputs / f"{stem}.png") as picture:
            cell = Cell(picture.convert("RGB"), read_manifest(batch.manifests / f"{stem}.json"))
        rows.setdefault(image.request.prompt, []).append(cell)
    draw_grid(list(rows.values())).save(ROOT / "docs/demo.png", optimize=True)


def draw_grid(rows: Sequence[Sequence[Cell]]) -> Image.Image:
    """The grid: each column under its setting, its passes and what they save, each row under its prompt."""
    width, height = (side * _SCALE + _GAP for side in rows[0][0].picture.size)
    captions = [caption_column([row[column] for row in rows], rows) for column in range(len(rows[0]))]
    top = len(captions[0]) * _LINE + _GAP
    grid = Image.new("RGB", (len(captions) * width + _GAP, top + len(rows) * (height + _LINE) + _GAP), "white")
    canvas, font = ImageDraw.Draw(grid), ImageFont.load_default(size=_FONT_SIZE)
    for column, lines in enumerate(captions):
        for number, line in enumerate(lines):
            canvas.text((column * width + _GAP, number * _LINE + _GAP // 2), line, "black", font)
    for number, row in enumerate(rows):
        y = top + number * (height + _LINE)
        canvas.text((_GAP, y), row[0].request.prompt, "#555555", font)
        for column, cell in enumerate(row):
            size = (cell.picture.width * _SCALE, cell.picture.height * _SCALE)
            grid.paste(cell.picture.resize(size, Image.Resampling.NEAREST), (column * width + _GAP, y + _LINE))
    return grid


def caption_column(cells: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """A column's setting, its cost, and what it saves beside the first column; seconds are means over the rows."""
    request, first = cells[0].request, [row[0] for row in rows]
    seconds, full_seconds = (mean(cell.manifest.timings.denoise for cell in column) for column in (cells, first))
    name = cells[0].manifest.sampling.policy["name"]
    lines = [f"{request.sampler}, {request.steps} steps, {name}", f"{cells[0].passes} passes, {seconds:.2f} s"]
    share = 1 - cells[0].passes / first[0].passes
    return [*lines, f"saves {100 * share:.0f} %: {full_seconds - seconds:.2f} s" if share else ""]


if __name__ == "__main__":
    main()
