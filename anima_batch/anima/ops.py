"""The host's part of the transformer in NumPy; all arrays are float32 unless said otherwise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anima_batch.anima.config import PATCH

Array = npt.NDArray[np.float32]

BLOCK_BYTES = 1 << 19  # of a block of rows: it stays in a cache of two or three megabytes, and calls of NumPy stay few
EPS = 1e-6  # of every norm in the model
ROPE_EXTRAPOLATION = 4.0  # height and width axes were trained with their theta stretched by this ratio (NTK)


def patchify(latents: Array) -> Array:
    """(C, h, w) -> (L, (C+1)·4): tokens row by row, features ordered channel, row in patch, column in patch.

    The last channel is the padding mask the model was trained with, zero inside the picture.
    """
    channels, height, width = latents.shape
    padded = np.concatenate([latents, np.zeros((1, height, width), np.float32)])
    blocks = padded.reshape(channels + 1, height // PATCH, PATCH, width // PATCH, PATCH)
    return np.ascontiguousarray(blocks.transpose(1, 3, 0, 2, 4)).reshape(-1, (channels + 1) * PATCH * PATCH)


def unpatchify(tokens: Array, height: int, width: int) -> Array:
    """(L, 4·C) -> (C, h, w); features come ordered row in patch, column in patch, channel: not patchify's order."""
    channels = tokens.shape[1] // (PATCH * PATCH)
    blocks = tokens.reshape(height // PATCH, width // PATCH, PATCH, PATCH, channels)
    return np.ascontiguousarray(blocks.transpose(4, 0, 2, 1, 3)).reshape(channels, height, width)


def embed_timesteps(sigmas: Array, dim: int) -> Array:
    """(N,) -> (N, dim): cosines, then sines, of sigma itself (0-1, not times 1000) at 10000^(-i/(dim/2))."""
    frequencies = np.exp(-np.log(10000.0) * np.arange(dim // 2) / (dim // 2))
    angles = sigmas.astype(np.float64)[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def rms_norm(x: Array, weight: Array) -> Array:
    """x / sqrt(mean(x²) + eps) · weight over the last axis."""
    normed: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(EPS))
    return normed * weight


def silu(x: Array) -> Array:
    """x · sigmoid(x)."""
    y: Array = x / (1 + np.exp(-x))
    return y


def modulate(x: Array, one_plus_scale: Array, shift: Array) -> Array:
    """LayerNorm(x)·(1 + scale) + shift over the last axis; the norm has no weights, its variance is the biased one."""
    out = np.empty_like(x)
    advance(x, None, Norm(one_plus_scale, shift, out))
    return out


@dataclass(frozen=True)
class Gated:
    """What a branch adds to the residual stream: gate (D,) times its output (L, D) of any float dtype."""

    gate: Array
    output: npt.NDArray[np.floating]


@dataclass(frozen=True)
class Norm:
    """What the next branch is given: `modulate` of the residual stream, into `out` (L, D), float32 or float16."""

    one_plus_scale: Array
    shift: Array
    out: npt.NDArray[np.floating]


_helper = ThreadPoolExecutor(1, "host-maths")  # its thread begins with the first work


def advance(residual: Array, added: Gated | None, norm: Norm | None, *, block_bytes: int = BLOCK_BYTES) -> None:
    """Adds to the residual stream (L, D) in place, and norms it for the next branch.

    Goes by blocks of rows that stay in the cache over all of it, half of them on a second thread. No row depends on
    another, so their number is no matter to the result's bits. A float16 `out` may get infinities: its reader looks for
    them.
    """
    rows = max(1, block_bytes // residual[:1].nbytes)
    whole = range(len(residual))
    half = len(residual) // 2 if len(residual) > rows else 0
    helped = _helper.submit(_advance_rows, residual, added, norm, whole[:half], rows) if half else None
    try:
        _advance_rows(residual, added, norm, whole[half:], rows)
    finally:
        if helped is not None:
            helped.result()


def _advance_rows(residual: Array, added: Gated | None, norm: Norm | None, span: range, rows: int) -> None:
    """As `advance`, of the rows in `span`, so many at once."""
    products = np.empty((rows, residual.shape[1]), np.float32)
    normed = None if norm is None or norm.out.dtype == np.float32 else np.empty_like(products)
    for start in span[::rows]:
        chosen = slice(start, min(start + rows, span.stop))
        block = residual[chosen]
        scratch = products[: len(block)]
        if added is not None:
            np.multiply(added.output[chosen], added.gate, out=scratch)
            np.add(block, scratch, out=block)
        if norm is not None:
            out = norm.out[chosen]
            target = out if normed is None else normed[: len(block)]
            _norm_block(block, norm, target, scratch)
            if target is not out:
                with np.errstate(over="ignore"):
                    np.copyto(out, target, casting="same_kind")


def _norm_block(x: Array, norm: Norm, out: Array, scratch: Array) -> None:
    """`modulate` of a few rows, without a temporary of their size."""
    width = np.float32(x.shape[1])
    mean = np.add.reduce(x, axis=1, keepdims=True)
    np.divide(mean, width, out=mean)
    np.subtract(x, mean, out=out)
    np.multiply(out, out, out=scratch)
    spread = np.add.reduce(scratch, axis=1, keepdims=True)
    np.divide(spread, width, out=spread)
    np.add(spread, np.float32(EPS), out=spread)
    np.sqrt(spread, out=spread)
    np.divide(norm.one_plus_scale, spread, out=scratch)
    np.multiply(out, scratch, out=out)
    np.add(out, norm.shift, out=out)


def rotary_table(height: int, width: int, head_dim: int) -> tuple[Array, Array]:
    """Cosines and sines, each (L, head_dim/2), for a grid of height x width tokens of one frame.

    The pairs of a head are divided among time, height and width: 2·(d div 6) components each for height and width, the
    rest for time, whose position is 0. Axis s turns by position·theta_s^(-2j/d_s) with theta_s = 10000·r^(d_s/(d_s-2)),
    r = 4 for height and width. Positions count from the top left corner whatever the resolution.
    """
    axis_dim = 2 * (head_dim // 6)
    theta = 10000.0 * ROPE_EXTRAPOLATION ** (axis_dim / (axis_dim - 2))
    frequencies = theta ** (-2.0 * np.arange(axis_dim // 2) / axis_dim)
    rows, columns = np.divmod(np.arange(height * width), width)
    still = np.zeros((height * width, (head_dim - 2 * axis_dim) // 2))
    angles = np.concatenate([still, rows[:, None] * frequencies, columns[:, None] * frequencies], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
