"""How far one picture is from another: PSNR, SSIM, and the contrast that it kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]  # (H, W, 3)
Plane = npt.NDArray[np.float64]  # (H, W), 0 to 255

_RANGE = 255.0
_RADIUS, _SIGMA = 5, 1.5  # of SSIM's Gaussian window, in pixels: 11x11
_K1, _K2 = 0.01, 0.03
_LUMA = (0.299, 0.587, 0.114)  # Rec. 601


def measure_psnr(picture: Picture, reference: Picture) -> float:
    """Peak signal to noise ratio in dB over all channels, infinite for equal pictures."""
    error = np.square(picture.astype(np.float64) - reference).mean()
    return float(10 * np.log10(_RANGE**2 / error)) if error else float("inf")


def measure_ssim(picture: Picture, reference: Picture) -> float:
    """Structural similarity, at most 1: the mean over the channels and over all whole windows.

    Wang et al. 2004 with their 11x11 Gaussian window of sigma 1.5; variances are those of the window itself.
    """
    channels = [_channel_ssim(picture[..., c], reference[..., c]) for c in range(picture.shape[2])]
    return float(np.mean(channels))


def _channel_ssim(picture: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    x, y = picture.astype(np.float64), reference.astype(np.float64)
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x, variance_y = _blur(x * x) - mean_x**2, _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    c1, c2 = (_K1 * _RANGE) ** 2, (_K2 * _RANGE) ** 2
    likeness = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return float((likeness / ((mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2))).mean())


def _blur(plane: Plane) -> Plane:
    """The Gaussian mean of every window that lies inside, (H - 10, W - 10)."""
    weights = np.exp(-np.square(np.arange(-_RADIUS, _RADIUS + 1) / _SIGMA) / 2)
    weights /= weights.sum()
    for axis in (0, 1):
        plane = np.lib.stride_tricks.sliding_window_view(plane, len(weights), axis) @ weights
    return plane


def measure_contrast(picture: Picture) -> float:
    """The standard deviation of a picture's brightness (Rec. 601), 0 to 127.5: its RMS contrast."""
    return float((picture @ np.array(_LUMA)).std())
