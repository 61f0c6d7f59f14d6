"""How long each kind of request may take, from what was measured."""

import pytest

from anima_batch.worker.deadlines import FIRST_SECONDS, Deadlines

STEP_512 = 2 * 512 * 512  # two passes over a picture of 512x512


def test_before_the_first_answer_the_published_figures_with_a_margin_count():
    deadlines = Deadlines(30)
    assert deadlines.allow("step", STEP_512) == 1200
    assert deadlines.allow("decode", 512 * 512) == 5 * 2154
    assert all(deadlines.allow(kind, 1) == seconds for kind, seconds in FIRST_SECONDS.items())


def test_a_larger_picture_gets_more_time_for_its_first_step_and_a_smaller_one_no_less():
    deadlines = Deadlines(30)
    assert deadlines.allow("step", 4 * STEP_512) == 4800
    assert deadlines.allow("step", STEP_512 / 16) == 1200


def test_then_five_times_the_slowest_of_its_kind_counts():
    deadlines = Deadlines(30)
    for seconds in (20.0, 40.0, 10.0):
        deadlines.learn("step", STEP_512, seconds)
    assert deadlines.allow("step", STEP_512) == 200
    assert deadlines.allow("step", STEP_512 / 2) == 200
    assert deadlines.allow("step", STEP_512 * 2) == 400
    assert deadlines.allow("decode", 512 * 512) == 5 * 2154


def test_a_forecast_step_says_nothing_about_a_computed_one():
    deadlines = Deadlines(30)
    deadlines.learn("forecast", 512 * 512, 0.001)
    assert deadlines.allow("forecast", 512 * 512) == 30
    assert deadlines.allow("step", STEP_512) == 1200


@pytest.mark.parametrize("floor", [2.0, 30.0, 600.0])
def test_no_deadline_is_below_the_floor(floor):
    deadlines = Deadlines(floor)
    deadlines.learn("step", STEP_512, 0.01)
    assert deadlines.allow("step", STEP_512) == floor


def test_each_miss_in_a_row_doubles_the_patience_until_an_answer_comes():
    deadlines = Deadlines(30)
    deadlines.learn("step", STEP_512, 10)
    deadlines.miss("step")
    deadlines.miss("step")
    assert deadlines.allow("step", STEP_512) == 200
    assert deadlines.allow("decode", 512 * 512) == 5 * 2154
    deadlines.learn("step", STEP_512, 10)
    assert deadlines.allow("step", STEP_512) == 50
