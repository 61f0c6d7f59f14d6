"""The grammar, the drawings, and the judge beside true drawings; none of it needs torch."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anima_batch.convert.tokenizer import read_qwen_tokenizer, read_t5_tokenizer
from training.drawing import draw_scene
from training.judge import judge_drawings
from training.measuring import Judge, compare_finding, sky_brightness
from training.scenes import (
    HELD_OUT_SHARE,
    PLACES,
    Scene,
    describe_scene,
    draw_lot,
    is_held_out,
    list_captions,
    list_scenes,
    training_caption,
)
from training.small_tokenizers import train_small_tokenizers
from training.stages import CONTEXT_ROWS, QWEN_ROWS, SIZES, T5_ROWS

ROOT = Path(__file__).parents[2]
HOUSE = Scene(1, "red", "house", "left", "grass", "day", "clear")


@pytest.fixture(scope="module")
def judge():
    return Judge()


def test_the_promised_sentences_are_of_the_grammar():
    captions = {describe_scene(scene) for scene in list_scenes()}
    assert "a red house on the left on grass by day" in captions
    assert "a red house on the left on grass by night" in captions
    assert "a red house on the right on grass by day" in captions
    assert "an owl" in {training_caption(replace(HOUSE, thing="owl"), seed) for seed in range(1000)}


def test_every_scene_has_a_caption_of_its_own():
    scenes = list(list_scenes())
    assert len({describe_scene(scene) for scene in scenes}) == len(scenes)


def test_held_out_scenes_are_never_drawn_for_training():
    lots = range(3000)
    training = {draw_lot(lot, held_out=False) for lot in lots}
    held_out = {draw_lot(lot, held_out=True) for lot in lots}
    assert not training & held_out
    assert not any(map(is_held_out, training))
    assert all(map(is_held_out, held_out))


def test_about_the_promised_share_is_held_out():
    shares = [is_held_out(scene) for scene in list_scenes()]
    # A tenth of 34,560 fair draws deviates by 0.0016.
    assert np.mean(shares) == pytest.approx(HELD_OUT_SHARE, abs=0.005)


def digest_drawings() -> str:
    digest = hashlib.sha256()
    for lot in range(12):
        scene = draw_lot(lot, held_out=False)
        digest.update(training_caption(scene, lot).encode())
        digest.update(draw_scene(scene, *SIZES[lot % len(SIZES)], lot).tobytes())
    return digest.hexdigest()


def test_another_process_draws_the_same_bytes_and_tells_the_same_captions():
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_scenes as t; "
    code += "print(t.digest_drawings())"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == digest_drawings()


@pytest.mark.parametrize("size", SIZES)
def test_a_drawing_has_the_size_asked_for(size):
    width, height = size
    assert draw_scene(HOUSE, width, height, 1).shape == (height, width, 3)


def test_day_is_brighter_than_night_by_more_than_60():
    for lot in range(40):
        scene = draw_lot(lot, held_out=False)
        day, night = (draw_scene(replace(scene, time=time), 128, 128, lot) for time in ("day", "night"))
        assert sky_brightness(day) - sky_brightness(night) > 60


@pytest.mark.parametrize("size", SIZES)
def test_the_thing_lies_on_the_asked_side(size):
    width, height = size
    for seed in range(8):
        red = {}
        for place in PLACES:
            picture = draw_scene(replace(HOUSE, place=place), width, height, seed).astype(int)
            columns = np.flatnonzero(((picture[:, :, 0] > 180) & (picture[:, :, 1:].max(axis=2) < 80)).any(axis=0))
            red[place] = columns[0], columns[-1]
        assert red["left"][1] < width / 2 <= red["right"][0]
        assert sum(red["middle"]) / 2 == pytest.approx(width / 2, abs=width / 16)


def test_pictures_that_differ_in_the_place_share_their_sky():
    left, right = (draw_scene(replace(HOUSE, place=place), 128, 128, 3) for place in ("left", "right"))
    assert np.array_equal(left[:40], right[:40])
    assert not np.array_equal(left, right)


def test_the_judge_agrees_with_true_drawings_and_not_with_others(judge):
    true, others = judge_drawings(judge, 200)
    assert true >= 0.99
    assert others <= 0.01


def test_the_judge_finds_every_field_of_a_drawing(judge):
    finding = judge.examine(draw_scene(HOUSE, 128, 128, 5))
    assert all(compare_finding(finding, HOUSE).values())


def test_the_judge_finds_no_thing_in_an_empty_landscape(judge):
    picture = draw_scene(HOUSE, 128, 128, 5)
    picture = np.repeat(picture[:, -8:-7], 128, axis=1)
    assert judge.examine(picture).thing is None


def test_every_word_is_one_token_of_both_small_tokenizers(tmp_path):
    train_small_tokenizers(tmp_path, list_captions())
    qwen, t5 = read_qwen_tokenizer(tmp_path / "qwen"), read_t5_tokenizer(tmp_path / "t5")
    for scene in list_scenes():
        caption = describe_scene(scene)
        words = len(caption.split())
        qwen_ids, t5_ids = qwen.encode(caption, add_special_tokens=False).ids, t5.encode(caption).ids
        assert len(qwen_ids) == words
        assert len(t5_ids) == words + 1 <= CONTEXT_ROWS
        assert max(qwen_ids) < QWEN_ROWS
        assert max(t5_ids) < T5_ROWS
