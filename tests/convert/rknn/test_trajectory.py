"""Pictures laid beside a reference's, and when one is near enough."""

import numpy as np
import pytest

from anima_batch.convert.rknn.trajectory import LEAST_PSNR_DB, LEAST_SSIM, Made, judge, make_picture

ROWS, COLUMNS = np.mgrid[:64, :64]
PICTURE = np.stack([2 * ROWS + COLUMNS, 3 * COLUMNS, ROWS * COLUMNS // 20], axis=-1).astype(np.uint8)
LATENTS = tuple(np.full((16, 8, 8), value, np.float32) for value in (1, 2, 3))


def judged(error, latents=LATENTS):
    """Of a picture that is off by `error` levels in every second pixel of a column."""
    picture = PICTURE.astype(int)
    picture[::2, ::2] += error
    return judge("a house", Made(latents, picture.clip(0, 255).astype(np.uint8)), Made(LATENTS, PICTURE))


def test_a_picture_is_as_good_as_itself():
    found = judged(0)
    assert (found.psnr_db, found.good, found.prompt) == (float("inf"), True, "a house")
    assert found.ssim == pytest.approx(1, abs=1e-12)


def test_the_noise_at_the_beginning_is_no_step():
    found = judged(0, (LATENTS[0], LATENTS[1] + 1, LATENTS[2]))
    assert [deviation.mae for deviation in found.latents] == [1, 0]


def test_a_picture_is_bad_below_the_limit_of_either_measure():
    grey = (PICTURE // 2 + 60).astype(np.uint8)
    brighter = judge("a house", Made(LATENTS, grey + 9), Made(LATENTS, grey))
    assert (brighter.psnr_db < LEAST_PSNR_DB, brighter.ssim > LEAST_SSIM, brighter.good) == (True, True, False)
    flat = np.full_like(grey, 100)
    flat[::2, ::2] += 6  # a faint pattern, which is lost
    faint = judge("a house", Made(LATENTS, np.full_like(grey, 101)), Made(LATENTS, flat))
    assert (faint.psnr_db > LEAST_PSNR_DB, faint.ssim < LEAST_SSIM, faint.good) == (True, True, False)
    assert judged(1).good


def test_latents_that_are_not_finite_make_no_picture_and_are_not_good():
    broken = np.full_like(LATENTS[2], np.nan)
    found = judge("a house", make_picture((*LATENTS[:2], broken), lambda latents: PICTURE), Made(LATENTS, PICTURE))
    assert (found.psnr_db, found.ssim, found.good, found.latents[-1].nan) == (None, None, False, broken.size)
