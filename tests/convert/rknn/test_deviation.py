import math

import numpy as np
import pytest

from anima_batch.convert.rknn.deviation import Deviation, measure_deviation

REFERENCE = np.array([[3.0, -4.0], [0.0, 1.0]], np.float32)


def test_an_array_does_not_deviate_from_itself():
    deviation = measure_deviation(REFERENCE, REFERENCE)
    assert deviation.cosine == pytest.approx(1, abs=1e-15)  # a square root and a division, each rounded once
    assert (deviation.mae, deviation.mse, deviation.max_abs, deviation.nan, deviation.inf) == (0, 0, 0, 0, 0)


def test_figures_are_those_worked_out_by_hand():
    deviation = measure_deviation(REFERENCE + np.array([[1, 0], [0, -2]], np.float32), REFERENCE)
    assert deviation.values == 4
    assert deviation.mae == 3 / 4
    assert deviation.mse == 5 / 4
    assert deviation.max_abs == 2
    # (4·3 + 16 - 1) / √((16 + 16 + 1)(9 + 16 + 1))
    assert deviation.cosine == pytest.approx(27 / math.sqrt(33 * 26), rel=1e-15)


def test_the_scale_of_an_array_leaves_its_cosine():
    assert measure_deviation(-2 * REFERENCE, REFERENCE).cosine == pytest.approx(-1, abs=1e-15)  # as above


def test_parts_add_up_to_the_whole():
    random = np.random.default_rng(1)
    array, reference = random.standard_normal((2, 6, 5))
    parts = sum((measure_deviation(array[i : i + 2], reference[i : i + 2]) for i in (0, 2, 4)), Deviation())
    whole = measure_deviation(array, reference)
    for name, value in whole.figures().items():
        assert parts.figures()[name] == pytest.approx(value, rel=1e-14)  # float64 sums in another order


def test_a_small_error_is_not_lost_beside_large_values():
    """In float32 the sum of 2^24 + 1 ones would not grow any further."""
    reference = np.full(1 << 20, 1000, np.float32)
    array = reference + np.float32(2**-10)
    # Exact: the error is the same float32 number everywhere, and powers of two add up without rounding.
    assert measure_deviation(array, reference).mae == 2**-10


def test_values_that_are_no_numbers_are_counted_and_left_out():
    array = np.array([1, np.nan, np.inf, -np.inf, 5], np.float32)
    deviation = measure_deviation(array, np.array([1, 1, 1, np.nan, 4], np.float32))
    assert (deviation.values, deviation.nan, deviation.inf, deviation.max_abs) == (2, 2, 1, 1)


def test_figures_of_nothing_are_null():
    figures = measure_deviation(np.full(3, np.nan), np.ones(3)).figures()
    assert (figures["cosine"], figures["mae"], figures["mse"], figures["nan"]) == (None, None, None, 3)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"shapes must be equal, got \(2, 2\) and \(4,\)"):
        measure_deviation(REFERENCE, REFERENCE.ravel())
