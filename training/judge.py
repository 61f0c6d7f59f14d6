"""Renders held-out prompts with a model set and measures what they show: `python -m training.judge MODEL_SET`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.job import ImageRequest, RunSpec
from anima_batch.model_set import load_model_set
from anima_batch.sampling.flow_match import make_sigmas
from anima_batch.sampling.sample import initial_state, sample
from training.drawing import draw_scene
from training.measuring import ASKED, Finding, Judge, Picture, compare_finding, sky_brightness
from training.scenes import Scene, describe_scene, draw_lot
from training.stages import SIZES

PROMPT_SEED = 30_000_000  # prompts are the held-out lots from here on
FIXED_SEEDS = 8
SHEET_PICTURES = 60
_SHEET_COLUMNS = 10
_CAPTION_HEIGHT = 36


@dataclass(frozen=True)
class Shot:
    """A picture of a scene and what it was found to show."""

    scene: Scene
    picture: Picture
    finding: Finding

    @property
    def wrong(self) -> list[str]:
        """The asked fields that are not as the scene says."""
        return find_wrong(self.finding, self.scene)


def find_wrong(finding: Finding, scene: Scene) -> list[str]:
    """The asked fields of a finding that are not as the scene says."""
    right = compare_finding(finding, scene)
    return [name for name in ASKED if not right[name]]


@dataclass(frozen=True)
class Settings:
    """How pictures are made; (width, height) in pixels."""

    steps: int
    guidance_scale: float
    size: tuple[int, int]

    def request(self, prompt: str, seed: int) -> ImageRequest:
        """What is asked for, with the built-in policy `full` and the other defaults of a job."""
        width, height = self.size
        return ImageRequest(
            prompt=prompt,
            seed=seed,
            width=width,
            height=height,
            steps=self.steps,
            guidance_scale=self.guidance_scale,
        )


def render(pipeline: Pipeline, request: ImageRequest) -> Picture:
    """The picture as `anima-batch run` makes it, uint8 (H, W, 3)."""
    conditioning = Conditioning(*pipeline.encode([request.prompt, request.negative_prompt]))
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    model = pipeline.make_transformer(sigmas, conditioning, request.width, request.height)
    *_, (last, _) = sample(request, model, initial_state(request))
    return pipeline.decode(last.latents)


def judge_prompts(pipeline: Pipeline, judge: Judge, count: int, settings: Settings, *, told: bool = True) -> list[Shot]:
    """Pictures of the first held-out prompts, each with its own seed; or, if nothing is told, of empty prompts."""
    shots = []
    for number in range(count):
        scene = draw_lot(PROMPT_SEED + number, held_out=True)
        prompt = describe_scene(scene) if told else ""
        picture = render(pipeline, settings.request(prompt, number))
        shots.append(Shot(scene, picture, judge.examine(picture)))
    return shots


def judge_drawings(judge: Judge, count: int) -> tuple[float, float]:
    """Shares of true drawings judged right, and of drawings of other captions judged right for the wrong one."""
    scenes = [draw_lot(PROMPT_SEED + number, held_out=True) for number in range(count)]
    findings = [
        judge.examine(draw_scene(scene, *SIZES[index % len(SIZES)], PROMPT_SEED + index))
        for index, scene in enumerate(scenes)
    ]
    true = [not find_wrong(finding, scene) for finding, scene in zip(findings, scenes, strict=True)]
    others = [
        not find_wrong(finding, scenes[index - 1])
        for index, finding in enumerate(findings)
        if scenes[index - 1] != scenes[index]
    ]
    return float(np.mean(true)), float(np.mean(others))


def tabulate(shots: Sequence[Shot]) -> dict[str, float]:
    """The share of pictures in which each field is right, all asked ones are, and the count is."""
    rights = [compare_finding(shot.finding, shot.scene) for shot in shots]
    shares = {name: float(np.mean([right[name] for right in rights])) for name in (*ASKED, "count")}
    return {**shares, "all": float(np.mean([not shot.wrong for shot in shots]))}


def judge_fixed_prompts(pipeline: Pipeline, judge: Judge, settings: Settings) -> dict[str, float]:
    """Of FIXED_SEEDS seeds: how often the red house stands on the asked side, and how often day is 60 brighter."""
    house = "a red house on the {} on grass by {}"
    pictures = {
        (place, time): [
            render(pipeline, settings.request(house.format(place, time), seed)) for seed in range(FIXED_SEEDS)
        ]
        for place, time in (("left", "day"), ("left", "night"), ("right", "day"))
    }
    sides = {
        f"red house, {place}, {time}": float(
            sum(
                (finding.place, finding.colour) == (place, "red")
                for finding in map(judge.examine, pictures[place, time])
            )
        )
        for place, time in pictures
    }
    pairs = zip(pictures["left", "day"], pictures["left", "night"], strict=True)
    differences = [sky_brightness(day) - sky_brightness(night) for day, night in pairs]
    return {**sides, "day brighter by 60": float(sum(difference > 60 for difference in differences))}


def draw_sheet(shots: Sequence[Shot], path: Path) -> None:
    """A grid of the pictures, each over its caption; what is wrong is told in red."""
    height, width = shots[0].picture.shape[:2]
    cell = (width + 4, height + _CAPTION_HEIGHT)
    rows = -(-len(shots) // _SHEET_COLUMNS)
    sheet = Image.new("RGB", (cell[0] * _SHEET_COLUMNS, cell[1] * rows), "white")
    canvas = ImageDraw.Draw(sheet)
    for index, shot in enumerate(shots):
        left, top = index % _SHEET_COLUMNS * cell[0], index // _SHEET_COLUMNS * cell[1]
        sheet.paste(Image.fromarray(shot.picture), (left, top))
        for line, text in enumerate(_split(describe_scene(shot.scene), 26)):
            canvas.text((left + 2, top + height + 10 * line), text, fill="black", font_size=9)
        if shot.wrong:
            found = ", ".join(f"{name}: {getattr(shot.finding, name)}" for name in shot.wrong)
            canvas.text((left + 2, top + 2), found, fill="red", font_size=9)
    sheet.save(path)


def _split(text: str, length: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > length:
            lines.append("")
        lines[-1] += f"{word} "
    return lines


def main() -> None:
    """Prints the shares and writes the sheet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_set", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance-scale", type=float, default=4.0)
    parser.add_argument("--size", type=int, nargs=2, default=SIZES[0], metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--sheet", type=Path, help="the contact sheet, a PNG")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    settings = Settings(options.steps, options.guidance_scale, tuple(options.size))
    pipeline = open_pipeline(load_model_set(options.model_set), "onnx", RunSpec(threads=options.threads))
    judge = Judge()
    true, others = judge_drawings(judge, 600)
    print(json.dumps({"true drawings judged right": true, "other captions judged right": others}))
    shots = judge_prompts(pipeline, judge, options.count, settings)
    if options.sheet:
        draw_sheet(shots[:SHEET_PICTURES], options.sheet)
    print(json.dumps(tabulate(shots), indent=1))
    blind = judge_prompts(pipeline, judge, options.count, settings, told=False)
    print(json.dumps({"right with an empty prompt": tabulate(blind)["all"]}))
    print(json.dumps(judge_fixed_prompts(pipeline, judge, settings), indent=1))
    pipeline.close()


if __name__ == "__main__":
    main()
