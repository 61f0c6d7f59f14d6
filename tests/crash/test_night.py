"""A short night of the kind that `just night` spends, and whether it would see what it looks for."""

import time

import pytest

from crash.night import Sample, _descriptors_grew, _growth, spend_night

MB = 1 << 20


def make_life(resident, descriptors=12, pid=7):
    """A process that is looked at ten times a second."""
    return [Sample(moment / 10, pid, resident(moment), descriptors) for moment in range(200)]


def test_thirty_images_under_random_faults_are_all_done_or_honestly_failed(tmp_path):
    morning = spend_night(tmp_path, images=30, seed=time.time_ns())
    assert not morning.problems, morning
    assert morning.done + morning.failed == 30
    assert morning.done >= 25


def test_a_leak_is_growth_and_noise_is_none():
    assert _growth(make_life(lambda moment: 100 * MB + moment * MB // 4)) > 40 * MB
    assert _growth(make_life(lambda moment: 100 * MB + (moment * 7919 % 13) * MB)) == 0
    assert _growth(make_life(lambda moment: 100 * MB + moment * 1000)) == 0


@pytest.mark.parametrize("sizes", [[60, 66, 58, 67, 64, 70, 65, 69], [60, 61, 66, 62, 67, 65, 63, 66, 66, 67, 64, 68]])
def test_a_few_lives_that_happen_to_rise_are_no_growth(sizes):
    assert _growth([Sample(moment, moment, size * MB, 12) for moment, size in enumerate(sizes)]) == 0


def test_descriptors_that_pile_up_are_seen():
    assert not _descriptors_grew(make_life(lambda _: MB))
    piling = [Sample(moment / 10, 7, MB, 10 + moment // 20) for moment in range(200)]
    assert _descriptors_grew(piling)
    later = [sample for pid in range(9) for sample in make_life(lambda _: MB, 10 + pid, pid)]
    assert _descriptors_grew(later)


def test_what_a_process_opens_as_it_starts_is_no_leak():
    starting = [Sample(moment / 10, 7, MB, 3 if moment < 9 else 7) for moment in range(23)]
    assert not _descriptors_grew(starting)
