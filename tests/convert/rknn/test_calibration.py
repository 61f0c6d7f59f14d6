"""What MLPs are calibrated by: their inputs in pictures that are really made."""

import contextlib

import numpy as np
import pytest

from anima_batch.anima.pipeline import open_pipeline
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.rknn.calibration import Pictures, calibrate, calibration_steps, digest_files, run_course
from anima_batch.convert.rknn.lanes import make_lane
from anima_batch.errors import UsageError
from anima_batch.job import RunSpec

PICTURES = Pictures((128, 128), ("a red house", "an owl"), seed=3, steps=4)


@pytest.fixture(scope="module")
def captured(golden_set, tmp_path_factory):
    said = []
    return calibrate(golden_set, PICTURES, tmp_path_factory.mktemp("calibration"), said.append)


def test_each_mlp_has_both_streams_of_a_noisy_and_a_clean_step_of_each_picture(captured, golden_set):
    blocks, hidden = golden_set.description.transformer.blocks, golden_set.description.transformer.hidden
    assert list(captured) == [f"transformer.{block:02d}.mlp" for block in range(blocks)]
    for files in captured.values():
        assert len(files) == 2 * 2 * 2
        arrays = [np.load(path) for path in files]
        assert {(array.shape, array.dtype.name) for array in arrays} == {((1, 64, hidden), "float32")}
        assert len({array.tobytes() for array in arrays}) == len(arrays)


def test_they_are_what_the_graph_is_given_at_that_step_of_the_picture(captured, golden_set):
    with contextlib.closing(open_pipeline(golden_set, "onnx", RunSpec())) as pipeline:
        course = run_course(pipeline, PICTURES.requests[0], 3, lambda line: None)
        calls = {}
        lane = make_lane("onnx", course.transformer, golden_set, OnnxBackend(), calls)
        residuals = [course.transformer.embed(course.latents[2]) for _ in ("cond", "uncond")]
        lane.add_block(0, residuals, 2, ("cond", "uncond"))
        lane.release()
    stored = [np.load(path) for path in captured["transformer.00.mlp"][2:4]]
    # The same bits: ONNX Runtime is asked to compute deterministically.
    assert all(np.array_equal(a, feeds["z"]) for a, (feeds, _) in zip(stored, calls["transformer.00.mlp"], strict=True))


@pytest.mark.parametrize(("steps", "expected"), [(1, (0,)), (2, (0, 1)), (3, (1,)), (20, (1, 18))])
def test_a_noisy_and_a_clean_step_are_captured(steps, expected):
    assert calibration_steps(steps) == expected


def test_the_digest_is_of_contents_not_of_names(captured, tmp_path):
    files = captured["transformer.00.mlp"]
    copy = tmp_path / "copy.npy"
    copy.write_bytes(files[0].read_bytes())
    assert digest_files([copy, *files[1:]]) == digest_files(files)
    assert digest_files(files[::-1]) != digest_files(files)


def test_values_that_no_picture_can_have_are_refused_in_one_line():
    with pytest.raises(UsageError, match=r"^--seed: .*, got -1$"):
        _ = Pictures((128, 128), seed=-1).requests
