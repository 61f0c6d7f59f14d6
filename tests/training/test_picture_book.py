"""The built-in set as it ships: converted from the weights kept beside it, and drawing what it is asked for."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest

from anima_batch.anima.pipeline import open_pipeline
from anima_batch.job import RunSpec
from anima_batch.model_set import built_in_folder, load_model_set, verify_model_set
from training.judge import Settings, judge_fixed_prompts, judge_prompts, render
from training.measuring import Judge, find_things
from training.picture_book import WEIGHTS, make_picture_book
from training.stages import SIZES

SHIPPED = load_model_set(built_in_folder() / "picture-book")
SETTINGS = Settings(steps=20, guidance_scale=4.0, size=SIZES[0])
PROMPTS = 24
HOUSE = SETTINGS.request("a red house on the left on grass by day", 3)


@pytest.fixture(scope="module")
def pipeline():
    with contextlib.closing(open_pipeline(SHIPPED, "onnx", RunSpec())) as opened:
        yield opened


@pytest.fixture(scope="module")
def judge():
    return Judge()


@pytest.fixture(scope="module")
def house(pipeline):
    return render(pipeline, HOUSE)


def difference(a, b):
    """Mean over the channels of how far two pictures lie apart, (H, W), of 255."""
    return np.abs(a.astype(np.float64) - b).mean(axis=2)


def psnr(a, b):
    return 10 * np.log10(255**2 / np.square(a.astype(np.float64) - b).mean())


def test_the_set_is_converted_from_the_weights_kept_here(tmp_path):
    made = make_picture_book(WEIGHTS, tmp_path / "picture-book")
    files, shipped = (
        {part.role: part.sha256 for part in model_set.description.components} for model_set in (made, SHIPPED)
    )
    assert files == shipped
    described, as_shipped = (model_set.description.model_dump(exclude={"components"}) for model_set in (made, SHIPPED))
    assert described == as_shipped


def test_its_digests_hold_and_it_is_small():
    assert verify_model_set(SHIPPED, sha256=True) == []
    assert sum(path.stat().st_size for path in SHIPPED.folder.rglob("*") if path.is_file()) < 12_000_000


def test_its_default_size_is_128_pixels_square():
    assert SHIPPED.description.sizes == ((128, 128), (192, 128), (128, 192))


@pytest.mark.parametrize(("size", "least"), [(SIZES[0], 20), (SIZES[1], 18), (SIZES[2], 18)])
def test_held_out_prompts_show_what_they_ask_for(size, least, pipeline, judge):
    """Of 200 at the default size 90.5 % do; of so few as 24 that share spreads by 6 %. A wrong build is far below."""
    shots = judge_prompts(pipeline, judge, PROMPTS, replace(SETTINGS, size=size))
    assert sum(not shot.wrong for shot in shots) >= least


def test_without_a_prompt_they_are_right_by_chance_alone(pipeline, judge):
    shots = judge_prompts(pipeline, judge, PROMPTS, SETTINGS, told=False)
    assert sum(not shot.wrong for shot in shots) <= 1


def test_sides_and_times_of_day_are_as_asked_on_seven_of_eight_seeds(pipeline, judge):
    counts = judge_fixed_prompts(pipeline, judge, SETTINGS)
    assert all(count >= 7 for count in counts.values()), counts


def test_another_colour_changes_the_house_and_little_else(pipeline, house):
    blue = render(pipeline, replace(HOUSE, prompt="a blue house on the left on grass by day"))
    changed, inside = difference(house, blue), find_things(house)
    assert changed[inside].mean() > 4 * changed[~inside].mean()


def test_guidance_is_visible(pipeline, house):
    assert difference(render(pipeline, replace(HOUSE, guidance_scale=1.0)), house).mean() > 4


@pytest.mark.parametrize("noise", ["philox", "numpy"])
def test_another_noise_is_another_picture(noise, pipeline, house):
    assert difference(render(pipeline, replace(HOUSE, noise=noise)), house).mean() > 2  # the same noise: exactly 0


def test_more_steps_come_closer_to_the_converged_picture(pipeline):
    converged = render(pipeline, replace(HOUSE, steps=200))
    few, some, many = (psnr(render(pipeline, replace(HOUSE, steps=steps)), converged) for steps in (8, 20, 50))
    assert few + 3 < some < many - 3
