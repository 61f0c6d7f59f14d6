"""Scenes as pictures: flat shapes, drawn large and reduced; nothing is finer than what 8 x 8 pixels can tell."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from training.scenes import Scene

Colour = tuple[int, int, int]
Point = tuple[float, float]
Role = Literal["body", "dark", "light", "white", "black", "wood", "leaf", "beak"]

OVERSAMPLING = 4
HORIZON = 0.62  # of the height
CENTRES = {"left": 0.25, "middle": 0.5, "right": 0.75}  # of the width
_SIZES = {1: 0.42, 2: 0.215, 3: 0.215}  # of the shorter side
# Where each of them stands, from the place's middle and the base line, in units of the shorter side.
_SPOTS = {1: ((0.0, 0.0),), 2: ((-0.118, 0.0), (0.118, 0.03)), 3: ((0.0, -0.13), (-0.118, 0.11), (0.118, 0.11))}

BODIES: dict[str, Colour] = {
    "red": (225, 40, 40),
    "orange": (250, 140, 20),
    "yellow": (252, 222, 40),
    "green": (20, 165, 90),
    "blue": (40, 75, 225),
    "purple": (140, 55, 190),
    "pink": (250, 140, 195),
    "brown": (112, 60, 25),
}
_FIXED: dict[str, Colour] = {
    "white": (250, 250, 250),
    "black": (30, 30, 40),
    "wood": (105, 70, 45),
    "leaf": (35, 130, 50),
    "beak": (245, 170, 50),
}
DARK = 0.68  # the darker shade of a body's colour
_SKIES: dict[str, tuple[Colour, Colour]] = {  # at the top and at the horizon
    "day": ((115, 185, 248), (200, 230, 252)),
    "dusk": ((95, 65, 135), (245, 150, 105)),
    "night": ((12, 16, 48), (38, 44, 92)),
}
_CLOUDS: dict[str, Colour] = {"day": (250, 250, 252), "dusk": (205, 150, 165), "night": (62, 68, 104)}
GROUND_COLOURS: dict[str, Colour] = {
    "grass": (125, 165, 55),
    "snow": (214, 228, 240),
    "sand": (236, 208, 150),
    "water": (55, 130, 165),
}
GROUND_LIGHT = {"day": 1.0, "dusk": 0.78, "night": 0.52}


@dataclass(frozen=True)
class Part:
    """A filled shape of a thing in its unit square, y downwards; an ellipse is given by two corners."""

    kind: Literal["polygon", "ellipse"]
    role: Role
    points: tuple[Point, ...]


def _polygon(role: Role, *points: Point) -> Part:
    return Part("polygon", role, points)


def _ellipse(role: Role, left: float, top: float, right: float, bottom: float) -> Part:
    return Part("ellipse", role, ((left, top), (right, bottom)))


def _box(role: Role, left: float, top: float, right: float, bottom: float) -> Part:
    return _polygon(role, (left, top), (right, top), (right, bottom), (left, bottom))


def _star(role: Role, outer: float, inner: float) -> Part:
    turns = [(math.pi * (index / 5 - 0.5), inner if index % 2 else outer) for index in range(10)]
    return _polygon(role, *((0.5 + r * math.cos(angle), 0.53 + r * math.sin(angle)) for angle, r in turns))


def _petals() -> tuple[Part, ...]:
    middles = [(0.5 + 0.2 * math.cos(turn), 0.32 + 0.2 * math.sin(turn)) for turn in (1.2566 * n for n in range(5))]
    return tuple(_ellipse("body", x - 0.16, y - 0.16, x + 0.16, y + 0.16) for x, y in middles)


PARTS: dict[str, tuple[Part, ...]] = {
    "house": (
        _box("body", 0.1, 0.42, 0.9, 1.0),
        _polygon("dark", (0.0, 0.46), (0.5, 0.02), (1.0, 0.46)),
        _box("black", 0.42, 0.66, 0.6, 1.0),
        _box("white", 0.18, 0.56, 0.35, 0.74),
        _box("white", 0.67, 0.56, 0.84, 0.74),
    ),
    "tree": (
        _box("wood", 0.42, 0.74, 0.58, 1.0),
        _polygon("body", (0.5, 0.24), (0.98, 0.78), (0.02, 0.78)),
        _polygon("body", (0.5, 0.0), (0.84, 0.42), (0.16, 0.42)),
    ),
    "owl": (
        _polygon("body", (0.2, 0.4), (0.2, 0.02), (0.5, 0.2)),
        _polygon("body", (0.8, 0.4), (0.8, 0.02), (0.5, 0.2)),
        _ellipse("body", 0.16, 0.14, 0.84, 1.0),
        _ellipse("light", 0.33, 0.55, 0.67, 0.95),
        _ellipse("white", 0.24, 0.24, 0.49, 0.49),
        _ellipse("white", 0.51, 0.24, 0.76, 0.49),
        _ellipse("black", 0.32, 0.31, 0.44, 0.43),
        _ellipse("black", 0.56, 0.31, 0.68, 0.43),
        _polygon("beak", (0.44, 0.46), (0.56, 0.46), (0.5, 0.6)),
    ),
    "boat": (
        _box("wood", 0.47, 0.04, 0.53, 0.7),
        _polygon("body", (0.53, 0.06), (0.95, 0.6), (0.53, 0.6)),
        _polygon("light", (0.47, 0.14), (0.47, 0.6), (0.1, 0.6)),
        _polygon("body", (0.0, 0.68), (1.0, 0.68), (0.82, 1.0), (0.18, 1.0)),
    ),
    "car": (
        _polygon("body", (0.18, 0.52), (0.32, 0.26), (0.7, 0.26), (0.84, 0.52)),
        _box("body", 0.0, 0.5, 1.0, 0.84),
        _polygon("white", (0.28, 0.5), (0.37, 0.33), (0.49, 0.33), (0.49, 0.5)),
        _polygon("white", (0.54, 0.5), (0.54, 0.33), (0.66, 0.33), (0.74, 0.5)),
        _ellipse("black", 0.12, 0.7, 0.4, 0.98),
        _ellipse("black", 0.6, 0.7, 0.88, 0.98),
        _ellipse("white", 0.21, 0.79, 0.31, 0.89),
        _ellipse("white", 0.69, 0.79, 0.79, 0.89),
    ),
    "cat": (
        _polygon("body", (0.74, 0.6), (0.86, 0.1), (0.99, 0.12), (0.92, 0.7)),
        _box("body", 0.2, 0.7, 0.33, 1.0),
        _box("body", 0.74, 0.7, 0.88, 1.0),
        _ellipse("body", 0.15, 0.46, 0.92, 0.9),
        _polygon("body", (0.02, 0.4), (0.02, 0.08), (0.24, 0.26)),
        _polygon("body", (0.44, 0.4), (0.44, 0.08), (0.22, 0.26)),
        _ellipse("body", 0.0, 0.18, 0.46, 0.62),
        _ellipse("black", 0.08, 0.33, 0.17, 0.43),
        _ellipse("black", 0.28, 0.33, 0.37, 0.43),
        _ellipse("light", 0.13, 0.45, 0.32, 0.58),
    ),
    "ball": (
        _ellipse("body", 0.06, 0.12, 0.94, 1.0),
        _ellipse("light", 0.34, 0.12, 0.66, 1.0),
        _ellipse("body", 0.44, 0.12, 0.56, 1.0),
    ),
    "star": (_star("body", 0.52, 0.22), _star("light", 0.24, 0.1)),
    "flower": (
        _box("leaf", 0.46, 0.5, 0.54, 1.0),
        _ellipse("leaf", 0.52, 0.7, 0.84, 0.86),
        _ellipse("leaf", 0.16, 0.7, 0.48, 0.86),
        *_petals(),
        _ellipse("wood", 0.38, 0.2, 0.62, 0.44),
    ),
    "fish": (
        _polygon("dark", (0.62, 0.58), (1.0, 0.26), (1.0, 0.92)),
        _polygon("dark", (0.25, 0.4), (0.42, 0.14), (0.6, 0.42)),
        _ellipse("body", 0.0, 0.3, 0.76, 0.88),
        _ellipse("white", 0.12, 0.44, 0.28, 0.6),
        _ellipse("black", 0.16, 0.48, 0.24, 0.56),
    ),
}


def draw_scene(scene: Scene, width: int, height: int, seed: int) -> npt.NDArray[np.uint8]:
    """The picture as uint8 (height, width, 3); the seed moves what the caption leaves open."""
    draw = random.Random(seed)
    image = _draw_sky(scene, width * OVERSAMPLING, height * OVERSAMPLING)
    canvas = ImageDraw.Draw(image)
    _draw_sky_marks(canvas, scene, draw)
    _draw_ground(canvas, scene, draw)
    _draw_fall(canvas, scene, draw)
    for left, top, size in _place_things(scene, image.width, image.height, draw):
        _draw_thing(canvas, scene, left, top, size)
    return np.asarray(image.reduce(OVERSAMPLING))


def _scaled(colour: Colour, factor: float) -> Colour:
    red, green, blue = (min(255, round(value * factor)) for value in colour)
    return red, green, blue


def _mixed(first: Colour, second: Colour, share: float) -> Colour:
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def _dull(scene: Scene) -> float:
    return 0.88 if scene.weather in ("rain", "snowfall") else 1.0


def _draw_sky(scene: Scene, width: int, height: int) -> Image.Image:
    top, bottom = (np.array(colour) * _dull(scene) for colour in _SKIES[scene.time])
    share = np.minimum(np.arange(height) / (HORIZON * height), 1)[:, None]
    column = np.rint(top + (bottom - top) * share).astype(np.uint8)
    return Image.fromarray(np.repeat(column[:, None], width, axis=1))


def _draw_sky_marks(canvas: ImageDraw.ImageDraw, scene: Scene, draw: random.Random) -> None:
    """Sun, or moon and stars, and clouds; all above the things."""
    width, height = canvas.im.size
    short = min(width, height)
    if scene.time == "night":
        for _ in range(6):
            _draw_disc(canvas, draw.uniform(0, width), draw.uniform(0, 0.36 * height), 0.011 * short, (225, 225, 205))
    x, y, radius = draw.uniform(0.15, 0.85) * width, draw.uniform(0.12, 0.16) * height, 0.07 * short
    if scene.time == "night":
        _draw_disc(canvas, x, y, radius, (240, 238, 215))
    elif scene.time == "day":
        _draw_disc(canvas, x, y, radius, (255, 240, 150))
    if scene.weather == "clear":
        return
    colour = _scaled(_CLOUDS[scene.time], 1.0 if scene.weather == "clouds" else 0.8)
    for start in (0.0, 0.5):
        x, y = draw.uniform(start + 0.08, start + 0.42) * width, draw.uniform(0.1, 0.24) * height
        for dx, dy, r in ((-0.09, 0.015, 0.055), (0.0, -0.01, 0.08), (0.09, 0.015, 0.06)):
            _draw_disc(canvas, x + dx * short, y + dy * short, r * short, colour)


def _draw_disc(canvas: ImageDraw.ImageDraw, x: float, y: float, radius: float, colour: Colour) -> None:
    canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def _draw_ground(canvas: ImageDraw.ImageDraw, scene: Scene, draw: random.Random) -> None:
    width, height = canvas.im.size
    short, top = min(width, height), HORIZON * height
    colour = _scaled(GROUND_COLOURS[scene.ground], GROUND_LIGHT[scene.time])
    canvas.rectangle((0, top, width, height), fill=colour)
    for _ in range(5):
        x, y = draw.uniform(0, width), draw.uniform(top + 0.04 * short, height)
        size = 0.07 * short
        if scene.ground == "grass":
            points = [(x - size / 2, y - size), (x, y), (x + size / 2, y - size)]
            canvas.line(points, fill=_scaled(colour, 0.8), width=round(0.018 * short))
        elif scene.ground == "water":
            canvas.line(
                [(x - size, y), (x + size, y)], fill=_mixed(colour, (255, 255, 255), 0.3), width=round(0.02 * short)
            )
        else:
            wide = size * (1.3 if scene.ground == "snow" else 0.4)
            canvas.ellipse((x - wide, y - size / 4, x + wide, y + size / 4), fill=_scaled(colour, 0.9))


def _draw_fall(canvas: ImageDraw.ImageDraw, scene: Scene, draw: random.Random) -> None:
    """Rain or snow in the air, behind the things."""
    if scene.weather not in ("rain", "snowfall"):
        return
    width, height = canvas.im.size
    short = min(width, height)
    for _ in range(14):
        x, y = draw.uniform(0, width), draw.uniform(0, height)
        if scene.weather == "rain":
            end = (x - 0.03 * short, y + 0.1 * short)
            canvas.line([(x, y), end], fill=(150, 180, 215), width=round(0.016 * short))
        else:
            _draw_disc(canvas, x, y, 0.018 * short, (245, 248, 252))


def _place_things(scene: Scene, width: int, height: int, draw: random.Random) -> list[tuple[float, float, float]]:
    """(left, top, size) of each thing, the farther ones first."""
    short = min(width, height)
    middle = CENTRES[scene.place] * width + draw.uniform(-0.02, 0.02) * short
    base = (0.8 + draw.uniform(-0.015, 0.015)) * height
    spots = []
    for dx, dy in _SPOTS[scene.count]:
        size = _SIZES[scene.count] * short * draw.uniform(0.94, 1.04)
        spots.append((middle + dx * short - size / 2, base + dy * short - size, size))
    return spots


def _draw_thing(canvas: ImageDraw.ImageDraw, scene: Scene, left: float, top: float, size: float) -> None:
    body = BODIES[scene.colour]
    colours = {**_FIXED, "body": body, "dark": _scaled(body, DARK), "light": _mixed(body, (255, 255, 255), 0.5)}
    parts = [(part, [(left + x * size, top + y * size) for x, y in part.points]) for part in PARTS[scene.thing]]
    for part, points in parts:
        _fill_part(canvas, part.kind, points, colours[part.role])


def _fill_part(canvas: ImageDraw.ImageDraw, kind: str, points: Sequence[Point], colour: Colour) -> None:
    if kind == "ellipse":
        (left, top), (right, bottom) = points
        canvas.ellipse((left, top, right, bottom), fill=colour)
    else:
        canvas.polygon(points, fill=colour)
