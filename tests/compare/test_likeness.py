"""PSNR, SSIM and contrast of pictures, by scikit-image."""

import math

import numpy as np
import pytest

from anima_batch import measures
from anima_batch.compare import measure_likeness
from anima_batch.errors import UsageError


@pytest.fixture
def picture():
    return np.random.default_rng(5).integers(0, 256, (48, 32, 3), dtype=np.uint8)


def test_a_picture_is_the_same_as_itself(picture):
    likeness = measure_likeness(picture, picture.copy())
    assert (likeness.psnr_db, likeness.ssim, likeness.contrast) == (math.inf, 1.0, 1.0)


def test_an_error_of_one_everywhere_is_48_decibels(picture):
    darker = np.where(picture > 0, picture - 1, 1).astype(np.uint8)
    assert measure_likeness(darker, picture).psnr_db == pytest.approx(20 * math.log10(255), abs=1e-12)


def test_both_implementations_of_ssim_and_psnr_agree(picture):
    noisy = np.clip(picture + np.random.default_rng(6).normal(0, 20, picture.shape), 0, 255).astype(np.uint8)
    likeness = measure_likeness(noisy, picture)
    # Ours in NumPy against scikit-image: float64 sums in another order.
    assert likeness.ssim == pytest.approx(measures.measure_ssim(noisy, picture), abs=1e-12)
    assert likeness.psnr_db == pytest.approx(measures.measure_psnr(noisy, picture), abs=1e-9)


def test_half_the_contrast_is_half(picture):
    flatter = np.full_like(picture, 100)
    flatter[::2] = 110
    reference = np.full_like(picture, 100)
    reference[::2] = 120
    assert measure_likeness(flatter, reference).contrast == pytest.approx(0.5, abs=1e-12)
    assert measure_likeness(picture, np.full_like(picture, 7)).contrast is None


def test_pictures_of_two_sizes_are_refused(picture):
    with pytest.raises(UsageError, match="one size, got 32x40 and 32x48"):
        measure_likeness(picture[:40], picture)
