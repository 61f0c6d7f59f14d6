"""How long work takes by what was measured: pure cases, each against the same sum done by hand."""

import itertools

import pytest

from anima_batch.plan import Measurement, Rates, Work, work_left

SMALL, LARGE = 100, 1000


def image(pixels, rate, *, fixed=0.0, forecast=0.0, other=0.0, encode=0.0, decode=0.0, forecasts=0):
    """Of four steps of two passes and some forecasts; `fixed` a computed step, `other` a step."""
    return Measurement(
        Work(pixels, 1, 8, 4, forecasts, int(encode > 0)),
        computed_seconds=8 * rate + 4 * fixed,
        fixed_seconds=4 * fixed,
        forecast_seconds=forecasts * forecast,
        other_seconds=(4 + forecasts) * other,
        encode_seconds=encode,
        decode_seconds=decode,
    )


def per_pass(rates, pixels):
    return rates.estimate(Work(pixels, passes=1))


def test_the_work_left_of_an_image_counts_passes_and_kinds_of_steps():
    assert work_left(SMALL, (2, 2, 0, 1, 2), 0) == Work(SMALL, 1, 7, 4, 1, 0)
    assert work_left(SMALL, (2, 2, 0, 1, 2), 0, encodes=True) == Work(SMALL, 1, 7, 4, 1, 1)
    assert work_left(SMALL, (2, 2, 0, 1, 2), 2) == Work(SMALL, 1, 3, 2, 1, 0)
    assert work_left(SMALL, (2, 2, 0, 1, 2), 5) == Work(SMALL, 1)


def test_each_kind_of_work_counts_with_its_own_seconds():
    rates = Rates((image(SMALL, 1.0, fixed=0.5, forecast=0.25, other=0.125, encode=3.0, decode=5.0, forecasts=2),))
    assert rates.estimate(Work(SMALL, passes=3)) == pytest.approx(3)
    assert rates.estimate(Work(SMALL, computed=3)) == pytest.approx(3 * (0.5 + 0.125))
    assert rates.estimate(Work(SMALL, forecasts=3)) == pytest.approx(3 * (0.25 + 0.125))
    assert rates.estimate(Work(SMALL, images=3)) == pytest.approx(15)
    assert rates.estimate(Work(SMALL, encodings=3)) == pytest.approx(9)
    assert rates.estimate(Work(SMALL, 1, 8, 4, 2, 1)) == pytest.approx(8 + 2 + 0.5 + 6 * 0.125 + 5 + 3)


def test_nothing_is_known_before_the_first_pass_was_measured():
    assert Rates().estimate(Work(SMALL, 1, 4, 2)) is None
    without = Rates((Measurement(Work(SMALL, 1), 0.0, decode_seconds=2.0),))
    assert without.estimate(Work(SMALL, 1, 4, 2)) is None
    assert without.estimate(Work(SMALL, 1)) == 2


def test_rates_are_medians_so_that_one_slow_image_does_not_act_on_them():
    rates = Rates()
    for rate, decode in ((1.0, 5.0), (1.2, 6.0), (90.0, 700.0)):
        rates = rates.add(image(SMALL, rate, decode=decode))
    assert per_pass(rates, SMALL) == pytest.approx(1.2)
    assert rates.estimate(Work(SMALL, images=1)) == pytest.approx(6)


def test_a_size_alone_is_scaled_by_the_pixels_but_not_what_opening_sessions_takes():
    rates = Rates((image(SMALL, 1.0, fixed=0.5, decode=4.0),))
    assert per_pass(rates, 3 * SMALL) == pytest.approx(3)
    assert rates.estimate(Work(3 * SMALL, computed=1)) == pytest.approx(0.5)
    assert rates.estimate(Work(3 * SMALL, images=1)) == pytest.approx(12)


def test_a_size_between_two_that_are_known_lies_between_them_and_one_outside_is_scaled_from_the_nearest():
    rates = Rates((image(SMALL, 1.0), image(SMALL, 3.0), image(LARGE, 11.0)))
    assert per_pass(rates, SMALL) == pytest.approx(2)
    assert per_pass(rates, 550) == pytest.approx(6.5)
    assert per_pass(rates, LARGE) == pytest.approx(11)
    assert per_pass(rates, 2 * LARGE) == pytest.approx(22)
    assert per_pass(rates, SMALL // 2) == pytest.approx(1)


@pytest.mark.parametrize(("encoded", "seconds"), [((9.0, 0.0, 0.0), 9), ((0.0, 0.0), 0), ((9.0, 0.0, 2.0, 3.0), 3)])
def test_encoding_takes_what_it_took_the_images_that_did_encode(encoded, seconds):
    rates = Rates(tuple(image(SMALL, 1.0, encode=encode) for encode in encoded))
    assert rates.estimate(Work(SMALL, encodings=1)) == pytest.approx(seconds)
    assert rates.estimate(Work(SMALL, passes=1)) == pytest.approx(1)


def test_a_simulation_counts_until_two_images_are_measured():
    rates = Rates(simulated=lambda work: 100.0 * work.passes)
    estimates = [per_pass(rates, SMALL)]
    for seconds in (2.0, 4.0):
        rates = rates.add(image(SMALL, seconds))
        estimates.append(per_pass(rates, SMALL))
    assert estimates == [100, 100, pytest.approx(3)]
    assert not rates.is_simulated


def test_adding_a_measurement_leaves_the_rates_before_as_they_were():
    before = Rates((image(SMALL, 2.0),))
    after = before.add(image(SMALL, 4.0))
    assert (per_pass(before, SMALL), per_pass(after, SMALL)) == (pytest.approx(2), pytest.approx(3))


def test_work_that_is_taken_away_leaves_what_was_there_before():
    one, two = Work(SMALL, 1, 8, 4, 2, 1), Work(SMALL, 1, 5, 3, 0, 0)
    assert one.plus(two).plus(two, -1) == one
    for a, b in itertools.permutations((one, two)):
        assert a.plus(b) == Work(SMALL, 2, 13, 7, 2, 1)
