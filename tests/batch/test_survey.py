"""What a manifest says of an image's speed."""

import dataclasses

import pytest
import sample_manifest

from anima_batch.batch import measure
from anima_batch.plan import Work

STEP = sample_manifest.done().steps[0]
STEPS = (
    STEP.model_copy(update={"seconds": 5.0}),
    STEP.model_copy(update={"index": 2, "seconds": 0.25, "passes": 0, "computed": False}),
    STEP.model_copy(update={"index": 3, "seconds": 4.0, "passes": 1}),
)
TIMINGS = {
    "encode": 1.0, "denoise": 9.25, "decode": 2.0, "load": 1.5, "init": 1.0, "run": 5.0, "release": 0.5, "host": 1.25,
    "total": 13.0,
}  # fmt: skip


def measure_timings(**changes):
    timings = sample_manifest.done().timings.model_copy(update={**TIMINGS, **changes})
    return measure(sample_manifest.done(steps=STEPS, timings=timings))


def test_an_images_seconds_are_divided_by_kind_of_step_and_what_is_left_was_spent_on_saving():
    found = measure_timings()
    assert found.work == Work(128 * 192, 1, 3, 2, 1, 1)
    assert (found.computed_seconds, found.forecast_seconds) == (9.0, 0.25)
    assert (found.encode_seconds, found.decode_seconds) == (1.0, 2.0)
    assert found.other_seconds == pytest.approx(13.0 - 1.0 - 9.25 - 2.0)


def test_an_image_that_found_its_prompts_encoded_has_no_encoding_in_its_work():
    found = measure_timings(encode=0.0, total=12.0)
    assert found == dataclasses.replace(measure_timings(), work=Work(128 * 192, 1, 3, 2, 1, 0), encode_seconds=0.0)


@pytest.mark.parametrize(
    ("changes", "fixed"),
    [
        ({}, 3.0),  # one after the other: load, init and release
        ({"run": 7.0}, 1.0),  # two of their seconds went by while something ran
        ({"run": 9.0, "host": 2.0}, 0.0),  # all of them did
        ({"load": 0.0, "init": 0.0, "release": 0.0}, 0.0),  # nothing was opened
    ],
)
def test_only_the_opening_of_sessions_that_nothing_hid_is_the_same_at_every_size(changes, fixed):
    found = measure_timings(**changes)
    assert found == dataclasses.replace(measure_timings(), fixed_seconds=fixed)
