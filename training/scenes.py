"""A grammar of captions and the scenes they mean, drawn from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

COUNTS = {1: "a", 2: "two", 3: "three"}
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
THINGS = ("house", "tree", "owl", "boat", "car", "cat", "ball", "star", "flower", "fish")
PLACES = {"left": "on the left", "middle": "in the middle", "right": "on the right"}
GROUNDS = ("grass", "snow", "sand", "water")
TIMES = {"day": "by day", "dusk": "at dusk", "night": "by night"}
WEATHERS = {"clear": "", "clouds": "under clouds", "rain": "in rain", "snowfall": "in snowfall"}

# How often a scene has them: counts and weather are the rarer words.
_COUNT_SHARES = (0.7, 0.18, 0.12)
_WEATHER_SHARES = (0.55, 0.15, 0.15, 0.15)

HELD_OUT_SHARE = 0.1
_SHORT_SHARE = 0.2  # captions that leave something open, so that "a red house" and "an owl at night" mean something too
_KEPT_SHARE = 0.5  # of the words of such a caption


@dataclass(frozen=True)
class Scene:
    """What a picture shows; every field is a word of the grammar above, `count` is 1 to 3."""

    count: int
    colour: str
    thing: str
    place: str
    ground: str
    time: str
    weather: str


def describe_scene(scene: Scene) -> str:
    """The whole caption, such as "a red house on the left on grass by day"."""
    return _join_words(scene, scene.colour, PLACES[scene.place], f"on {scene.ground}", TIMES[scene.time])


def describe_briefly(scene: Scene, draw: random.Random) -> str:
    """A caption that is true but may leave the colour, place, ground and time open; weather and count are told."""

    def keep(words: str) -> str:
        return words if draw.random() < _KEPT_SHARE else ""

    time = "at night" if scene.time == "night" and draw.random() < 0.5 else TIMES[scene.time]
    return _join_words(scene, keep(scene.colour), keep(PLACES[scene.place]), keep(f"on {scene.ground}"), keep(time))


def _join_words(scene: Scene, colour: str, place: str, ground: str, time: str) -> str:
    name = scene.thing if scene.count == 1 or scene.thing == "fish" else f"{scene.thing}s"
    article = "an" if scene.count == 1 and (colour or name)[0] in "aeiou" else COUNTS[scene.count]
    words = (article, colour, name, place, ground, time, WEATHERS[scene.weather])
    return " ".join(word for word in words if word)


def is_held_out(scene: Scene) -> bool:
    """Whether training must never see the scene; decided by its caption's digest alone."""
    digest = hashlib.sha256(describe_scene(scene).encode()).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT_SHARE * 2**32


def list_scenes() -> Iterator[Scene]:
    """Every scene of the grammar."""
    for words in product(COUNTS, COLOURS, THINGS, PLACES, GROUNDS, TIMES, WEATHERS):
        yield Scene(*words)


def draw_lot(seed: int, *, held_out: bool) -> Scene:
    """The scene with that number, held out or not; equal numbers may share a scene with others."""
    draw = random.Random(seed)
    while True:
        scene = Scene(
            count=draw.choices(tuple(COUNTS), _COUNT_SHARES)[0],
            colour=draw.choice(COLOURS),
            thing=draw.choice(THINGS),
            place=draw.choice(tuple(PLACES)),
            ground=draw.choice(GROUNDS),
            time=draw.choice(tuple(TIMES)),
            weather=draw.choices(tuple(WEATHERS), _WEATHER_SHARES)[0],
        )
        if is_held_out(scene) == held_out:
            return scene


def training_caption(scene: Scene, seed: int) -> str:
    """The caption that training pairs with the scene: mostly the whole one."""
    draw = random.Random(seed)
    return describe_briefly(scene, draw) if draw.random() < _SHORT_SHARE else describe_scene(scene)


def list_captions() -> list[str]:
    """Captions in which every word and every pair of neighbouring words occurs: what tokenizers are made from."""
    draw = random.Random(0)
    scenes = [draw_lot(number, held_out=False) for number in range(600)]
    return [text for scene in scenes for text in (describe_scene(scene), describe_briefly(scene, draw))]
