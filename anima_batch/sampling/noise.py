"""The seeded initial noise: torch's CPU generator, Philox as stable-diffusion.cpp, and NumPy's own."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from anima_batch.job.request import NoiseKind
from anima_batch.sampling.state import Array

_BOX_MULLER_BLOCK = 16
_PHILOX_ROUNDS = 10
_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW_32_BITS = 0xFFFFFFFF


def make_noise(kind: NoiseKind, seed: int, shape: tuple[int, ...]) -> Array:
    """Standard normal float32 values of `shape`, the same on every machine for a kind and a seed of 0 to 2^64-1.

    The number of elements must be a multiple of 16, torch's block; latents of 16 channels always are.
    Logarithms, sines and cosines are taken in float64 and rounded once: the float32 ones of NumPy differ between CPUs.
    """
    count = math.prod(shape)
    if count % _BOX_MULLER_BLOCK:
        raise ValueError(f"noise of shape {shape}: the number of elements must be a multiple of 16, got {count}")
    if kind == "torch":
        return _draw_torch(seed, count).reshape(shape)
    if kind == "philox":
        return _draw_philox(seed, count).reshape(shape)
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape, dtype=np.float32)


def _draw_torch(seed: int, count: int) -> Array:
    """What torch.randn draws on the CPU: MT19937 seeded with the low 32 bits, Box-Muller over blocks of 16.

    A uniform is the low 24 bits of one draw. In a block the first 8 give the radius (from 1-u, never 0), the last 8 the
    angle; the outputs are 8 cosines, then 8 sines.
    """
    # RandomState, as NumPy froze its seeding and its stream (NEP 19); randint over all of uint32 is the raw output.
    raw = np.random.RandomState(seed & _LOW_32_BITS).randint(0, 1 << 32, size=count, dtype=np.uint32)
    uniform = (raw & 0xFFFFFF).astype(np.float32) * np.float32(2.0**-24)  # (count,), exact
    blocks = uniform.reshape(-1, 2, _BOX_MULLER_BLOCK // 2)
    radius = _radius(np.float32(1) - blocks[:, 0])  # (blocks, 8)
    angle = (np.float32(2 * math.pi) * blocks[:, 1]).astype(np.float64)  # (blocks, 8), rounded to float32 before
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    return np.stack([radius * cosine, radius * sine], axis=1).reshape(count)


def _draw_philox(seed: int, count: int) -> Array:
    """stable-diffusion.cpp's default noise: Philox4x32-10, one normal a counter, the sine branch of Box-Muller.

    Counter (0, 0, i, 0), key = the 64-bit seed (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
    """
    first, second = _philox_words(seed, count)
    scale = np.float32(2.0**-32)
    uniform = first.astype(np.float32) * scale + scale / np.float32(2)
    turn = np.float32(2.0**-32 * 2 * math.pi)
    angle = second.astype(np.float32) * turn + turn / np.float32(2)
    noise: Array = _radius(uniform) * np.sin(angle.astype(np.float64)).astype(np.float32)
    return noise


def _radius(uniform: Array) -> Array:
    """sqrt(-2 ln u), 0 where rounding made u = 1."""
    radius: Array = np.sqrt(np.float32(-2) * np.log(uniform.astype(np.float64)).astype(np.float32))
    return radius


def _philox_words(seed: int, count: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The first two of the four 32-bit words of Philox4x32-10 for the counters (0, 0, i, 0), i < count."""
    low, shift = np.uint64(_LOW_32_BITS), np.uint64(32)
    keys = [seed & _LOW_32_BITS, seed >> 32]
    a = np.zeros(count, dtype=np.uint64)
    b, c, d = a, np.arange(count, dtype=np.uint64), a
    for _ in range(_PHILOX_ROUNDS):
        # A product of two 32-bit words fits 64 bits, so nothing overflows.
        left, right = a * np.uint64(_PHILOX_MULTIPLIERS[0]), c * np.uint64(_PHILOX_MULTIPLIERS[1])
        a, b = (right >> shift) ^ b ^ np.uint64(keys[0]), right & low
        c, d = (left >> shift) ^ d ^ np.uint64(keys[1]), left & low
        keys = [(key + step) & _LOW_32_BITS for key, step in zip(keys, _PHILOX_KEY_STEPS, strict=True)]
    return a, b
