"""The measurement of the program's own cost, run for real on a small size."""

import numpy as np
import pytest

from anima_batch.bench import bench_checkpoint
from anima_batch.errors import StorageError, UsageError
from anima_batch.store import Checkpoint, CheckpointFolder

LATENT_BYTES = 4 * 16 * 16 * 16  # of a picture of 128 x 128
FEATURE_BYTES = 4 * 64 * 2048  # of one stream of it


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    return {cost.policy: cost for cost in bench_checkpoint(tmp_path_factory.mktemp("bench"), 128, 128, 12)}


def test_each_kind_of_history_is_measured(costs):
    assert list(costs) == ["full", "spectrum, denoised history", "spectrum, feature history"]
    assert {cost.steps for cost in costs.values()} == {12}


def test_the_milliseconds_fit_together(costs):
    for cost in costs.values():
        assert cost.sampler_ms_median > 0
        assert 0 < cost.save_ms_median < cost.step_ms_max
        assert cost.step_ms_median <= cost.step_ms_max
        assert max(cost.sampler_ms_median, cost.save_ms_median) < cost.step_ms_median


def test_the_bytes_a_step_are_those_that_were_written(costs):
    """The log, names and digests of a checkpoint take less than 6 kB in twelve steps.

    Spectrum computes the steps 1 to 4, 6, 8, 11 and 12 of 12, and what each leaves is written once.
    """
    computed = 8 / 12
    for policy, history in {
        "full": 0,
        "spectrum, denoised history": computed * LATENT_BYTES,
        "spectrum, feature history": 2 * computed * FEATURE_BYTES,
    }.items():
        least = LATENT_BYTES + history
        assert least < costs[policy].bytes_per_step < least + 6000


def test_nothing_is_left_in_the_folder_not_even_of_a_bench_that_was_killed(tmp_path):
    tensors = {"latents": np.zeros(1, np.float32), "history.50.0": np.zeros(1_000_000, np.float32)}
    CheckpointFolder(tmp_path / ".bench-checkpoint").save(Checkpoint(2, 2, tensors, {}))
    costs = list(bench_checkpoint(tmp_path, 128, 128, 2))
    assert list(tmp_path.iterdir()) == []
    assert costs[0].bytes_per_step < 100_000


def test_a_measurement_that_is_broken_off_cleans_up_too(tmp_path):
    measured = bench_checkpoint(tmp_path, 128, 128, 2)
    next(measured)
    measured.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("width", "height", "key"), [(1000, 128, "width"), (128, 9008, "height"), (128, 0, "height")])
def test_a_size_that_no_picture_has_is_a_usage_error(width, height, key, tmp_path):
    with pytest.raises(UsageError, match=f"^bench: {key}: .*, got {width if key == 'width' else height}$") as caught:
        next(bench_checkpoint(tmp_path, width, height, 4))
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError) as caught:
        next(bench_checkpoint(tmp_path / "file", 128, 128, 2))
    assert caught.value.exit_code == 5
