"""How near one picture is to another, by scikit-image; this module alone imports it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from anima_batch.errors import UsageError
from anima_batch.measures import Picture, measure_contrast

_SIGMA = 1.5  # of SSIM's Gaussian window, in pixels; scikit-image cuts it to 11x11


@dataclass(frozen=True)
class Likeness:
    """Of a picture to its reference: PSNR in dB (infinite for the same pixels), SSIM, and the share of its contrast.

    `contrast` is the ratio of the two RMS contrasts, None where the reference has one colour.
    """

    psnr_db: float
    ssim: float
    contrast: float | None


def measure_likeness(picture: Picture, reference: Picture) -> Likeness:
    """PSNR and SSIM over all three channels, 8 bits: SSIM as Wang et al. 2004 with their 11x11 Gaussian window.

    Raises UsageError for pictures of different sizes.
    """
    if picture.shape != reference.shape:
        sizes = " and ".join(f"{shape[1]}x{shape[0]}" for shape in (picture.shape, reference.shape))
        raise UsageError(f"compare: both pictures must have one size, got {sizes}")
    contrast = measure_contrast(reference)
    return Likeness(
        psnr_db=_psnr(picture, reference),
        ssim=float(
            structural_similarity(
                picture,
                reference,
                data_range=255,
                channel_axis=2,
                gaussian_weights=True,
                sigma=_SIGMA,
                use_sample_covariance=False,
            )
        ),
        contrast=measure_contrast(picture) / contrast if contrast else None,
    )


def _psnr(picture: Picture, reference: Picture) -> float:
    if (picture == reference).all():  # scikit-image divides by zero, and warns
        return math.inf
    return float(peak_signal_noise_ratio(reference, picture, data_range=255))
