import numpy as np
import pytest

from anima_batch.measures import measure_contrast, measure_psnr, measure_ssim

ROWS, COLUMNS = np.mgrid[:32, :40]
PICTURE = np.stack([6 * COLUMNS + ROWS, COLUMNS * ROWS, COLUMNS**2 + 3 * ROWS], axis=-1).astype(np.uint8)
CHANGED = np.stack([6 * COLUMNS + ROWS + 9, COLUMNS * ROWS // 2, COLUMNS**2 + 3 * ROWS], axis=-1).astype(np.uint8)


def test_psnr_and_ssim_are_those_of_scikit_image():
    """scikit-image 0.26: structural_similarity with gaussian_weights, sigma 1.5, use_sample_covariance False.

    The tolerance is that of sums in another order.
    """
    assert measure_psnr(CHANGED, PICTURE) == pytest.approx(15.11679563674588, rel=1e-12)
    assert measure_ssim(CHANGED, PICTURE) == pytest.approx(0.8038110056522726, rel=1e-12)


def test_a_picture_is_itself():
    assert measure_psnr(PICTURE, PICTURE) == float("inf")
    assert measure_ssim(PICTURE, PICTURE) == pytest.approx(1, abs=1e-12)


def test_contrast_is_the_spread_of_brightness():
    picture = np.zeros((8, 8, 3), np.uint8)
    assert measure_contrast(picture) == 0
    picture[:4] = 100  # half black, half grey: 50 to either side of the mean
    assert measure_contrast(picture) == pytest.approx(50, rel=1e-12)
