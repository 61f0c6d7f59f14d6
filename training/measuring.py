"""What a picture shows, found out by measuring: colours where they are expected, and silhouettes beside drawn ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy import ndimage

from training.drawing import BODIES, CENTRES, DARK, GROUND_COLOURS, GROUND_LIGHT, draw_scene
from training.scenes import COUNTS, THINGS, Scene, draw_lot

Picture = npt.NDArray[np.uint8]  # (H, W, 3)

SKY = 0.25  # of the height, from the top: clear of things
GROUND = 0.94  # from here on down nothing stands
_THINGS = (0.32, 0.96)  # between these heights things are looked for
_CONTRAST = 40  # of 255 in one channel, to the middle colour of the row
_SMALLEST = 0.004  # of a picture 128 wide and high; less is a flake or a wave
_RASTER = 24
_NEIGHBOURS = 5
_REFERENCES = 30  # drawn for each thing and count
_REFERENCE_SEED = 20_000_000  # scenes of their own, which neither training nor prompts use
_REFERENCE_SIZE = (128, 128)
_COLOUR_DISTANCE = 75.0  # from a body's colour, in RGB; farther pixels have none


@dataclass(frozen=True)
class Finding:
    """What a picture shows; None where nothing of the kind was found."""

    thing: str | None
    colour: str | None
    place: str | None
    ground: str
    time: str
    count: int | None


ASKED = ("thing", "colour", "place", "ground", "time")  # what must be right; the count is told beside it


def compare_finding(finding: Finding, scene: Scene) -> dict[str, bool]:
    """Whether each field of the finding is what the scene says."""
    return {field.name: getattr(finding, field.name) == getattr(scene, field.name) for field in fields(Finding)}


class Judge:
    """Judges pictures by drawn references, which are made once."""

    def __init__(self) -> None:
        rasters, self._labels = [], []
        skies: dict[tuple[str, str], list[npt.NDArray[Any]]] = {}
        for number, (thing, count) in enumerate(product(THINGS, COUNTS)):
            for lot in range(_REFERENCE_SEED + number * 1000, _REFERENCE_SEED + number * 1000 + _REFERENCES):
                scene = replace(draw_lot(lot, held_out=False), thing=thing, count=count)
                picture = draw_scene(scene, *_REFERENCE_SIZE, lot)
                skies.setdefault((scene.time, scene.weather), []).append(_sky_colour(picture))
                mask = find_things(picture)
                assert mask is not None
                rasters.append(_rasterise(mask))
                self._labels.append((thing, count))
        self._rasters = np.stack(rasters)
        self._skies = [(time, np.mean(colours, axis=0)) for (time, _), colours in skies.items()]

    def examine(self, picture: Picture) -> Finding:
        """What the picture shows."""
        sky = _sky_colour(picture)
        time = min(self._skies, key=lambda known: float(np.abs(known[1] - sky).sum()))[0]
        ground = _find_ground(picture)
        mask = find_things(picture)
        if mask is None:
            return Finding(None, None, None, ground, time, None)
        thing, count = self._classify(mask)
        return Finding(thing, find_colour(picture, mask), _find_place(mask), ground, time, count)

    def _classify(self, mask: npt.NDArray[np.bool_]) -> tuple[str, int]:
        distances = np.square(self._rasters - _rasterise(mask)).sum(axis=1)
        nearest: list[tuple[str, int]] = [
            self._labels[index] for index in np.argsort(distances, kind="stable")[:_NEIGHBOURS]
        ]
        return Counter(nearest).most_common(1)[0][0]


def find_things(picture: Picture) -> npt.NDArray[np.bool_] | None:
    """Where the picture differs from the middle of its rows, bool (H, W); None where nothing large does."""
    height = len(picture)
    values = picture.astype(np.int16)
    mask = np.abs(values - np.median(values, axis=1, keepdims=True)).max(axis=2) > _CONTRAST
    rows = np.arange(height)
    mask &= ((rows >= _THINGS[0] * height) & (rows < _THINGS[1] * height))[:, None]
    mask = ndimage.binary_opening(ndimage.binary_fill_holes(mask), np.ones((5, 5)))
    labels, count = ndimage.label(mask)
    sizes = ndimage.sum_labels(mask, labels, range(1, count + 1))
    large = [index + 1 for index, size in enumerate(sizes) if size >= _SMALLEST * 128 * 128]
    kept: npt.NDArray[np.bool_] = np.isin(labels, large)
    return kept if large else None


def find_colour(picture: Picture, mask: npt.NDArray[np.bool_]) -> str | None:
    """The colour of most of the things' pixels; outlines, windows and the like have none."""
    names, pixels = tuple(BODIES), picture[mask].astype(np.float32)
    bodies = np.array(tuple(BODIES.values()), np.float32)
    palette = np.concatenate([bodies, bodies * DARK, [(30, 30, 40), (250, 250, 250)]])  # a roof is a darker shade
    distances = np.linalg.norm(pixels[:, None] - palette, axis=2)
    nearest = distances.argmin(axis=1)
    nearest = nearest[(distances.min(axis=1) < _COLOUR_DISTANCE) & (nearest < 2 * len(names))] % len(names)
    return names[np.bincount(nearest, minlength=len(names)).argmax()] if len(nearest) else None


def _find_place(mask: npt.NDArray[np.bool_]) -> str:
    columns = np.flatnonzero(mask.any(axis=0))
    middle = (columns[0] + columns[-1] + 1) / 2 / mask.shape[1]
    return min(CENTRES, key=lambda place: abs(CENTRES[place] - middle))


def _find_ground(picture: Picture) -> str:
    rows = picture[round(GROUND * len(picture)) :]
    colour = np.median(rows.reshape(-1, 3), axis=0)
    known = [
        (ground, np.array(GROUND_COLOURS[ground]) * light)
        for ground in GROUND_COLOURS
        for light in GROUND_LIGHT.values()
    ]
    return min(known, key=lambda entry: float(np.abs(entry[1] - colour).sum()))[0]


def _sky_colour(picture: Picture) -> npt.NDArray[Any]:
    return np.asarray(picture[: round(SKY * len(picture))].reshape(-1, 3).mean(axis=0))


def sky_brightness(picture: Picture) -> float:
    """Mean brightness of the sky, 0 to 255 (Rec. 601)."""
    return float(_sky_colour(picture) @ np.array([0.299, 0.587, 0.114]))


def _rasterise(mask: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """The silhouette in a square of its own size and its proportions, as one vector."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    part = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    small = Image.fromarray(part.astype(np.uint8) * 255).resize((_RASTER, _RASTER), Image.Resampling.BOX)
    proportions = np.log(part.shape[1] / part.shape[0]) * _RASTER / 2
    return np.append(np.asarray(small, np.float64).ravel() / 255, proportions)
