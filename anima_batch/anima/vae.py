"""Latents to pixels: the decoder over the whole picture, or over overlapping tiles that are blended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from anima_batch.anima.config import VAE_FACTOR
from anima_batch.backends.base import Session, check_output
from anima_batch.errors import BackendError
from anima_batch.model_set import VaeConfig

Array = npt.NDArray[Any]

OVERLAP = 0.5  # share of a tile that neighbours are asked to share, at least
MIN_TILE = 4  # latent pixels; less has no room for an overlap


@dataclass(frozen=True)
class Tile:
    """Where a tile starts, and how much of its beginning is ignored because it was moved back to fit."""

    start: int
    skip: int


@dataclass(frozen=True)
class TilePlan:
    """The tiles along one axis of `length`, each `tile` long, blended over `overlap`; all in latent pixels."""

    length: int
    tile: int
    overlap: int
    tiles: tuple[Tile, ...]


def decode(session: Session, latents: Array, config: VaeConfig) -> Array:
    """The picture as uint8 (8h, 8w, 3) of float32 latents (16, h, w) as the sampler leaves them.

    A value v in 0 to 1 becomes floor(255·v + 0.5): half is rounded up.
    """
    levels: Array = np.floor(decode_image(session, latents, config) * np.float32(255) + np.float32(0.5))
    return levels.astype(np.uint8)


def decode_image(session: Session, latents: Array, config: VaeConfig) -> Array:
    """As `decode`, but float32 (8h, 8w, 3) in 0 to 1; clamped only after the tiles are merged.

    Raises BackendError when the decoder's output is not finite.
    """
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (config.latent_mean, config.latent_std))
    raw = decode_raw(session, latents * std + mean, config.tile)  # (3, 8h, 8w)
    wrong = raw.size - int(np.count_nonzero(np.isfinite(raw)))
    if wrong:
        raise BackendError(
            f"vae.decoder: {wrong} of {raw.size} values are NaN or infinite: the latents or the graph are damaged"
        )
    image: Array = np.clip((raw.transpose(1, 2, 0) + np.float32(1)) / np.float32(2), np.float32(0), np.float32(1))
    return image


def decode_raw(session: Session, z: Array, tile: int | None) -> Array:
    """The decoder's own output, float32 (3, 8h, 8w), nominally -1 to 1, for z (16, h, w); `tile` in latent pixels."""
    _, height, width = z.shape
    if tile is None or (tile >= height and tile >= width):
        return _run(session, z[None])
    rows, columns = plan_tiles(height, tile), plan_tiles(width, tile)
    image = np.zeros((3, VAE_FACTOR * height, VAE_FACTOR * width), np.float32)
    for top, row_weights in _spans(rows):
        for left, column_weights in _spans(columns):
            part = z[None, :, top : top + rows.tile, left : left + columns.tile]
            pixels = _run(session, np.ascontiguousarray(part))
            target = image[
                :,
                VAE_FACTOR * top : VAE_FACTOR * (top + rows.tile),
                VAE_FACTOR * left : VAE_FACTOR * (left + columns.tile),
            ]
            target += pixels * row_weights[:, None] * column_weights
    return image


def _run(session: Session, z: Array) -> Array:
    height, width = z.shape[2:]
    pixels: Array = check_output("vae.decoder", session.run({"z": z}), (1, 3, VAE_FACTOR * height, VAE_FACTOR * width))[
        0
    ]
    return pixels


def _spans(plan: TilePlan) -> Iterator[tuple[int, Array]]:
    return ((tile.start, tile_weights(plan, tile)) for tile in plan.tiles)


def plan_tiles(length: int, tile: int, overlap: float = OVERLAP) -> TilePlan:
    """Tiles that cover `length`, all of one size; as many as keep at least about `overlap`, which then grows to fit.

    The plan of stable-diffusion.cpp, so that tiled pictures can be compared with it. A last tile that would reach
    beyond the end is moved back. The tile is cut to the length; raises ValueError below MIN_TILE.
    """
    tile = min(tile, length)
    if tile < MIN_TILE:
        raise ValueError(f"a tile must be at least {MIN_TILE} latent pixels, got {tile}")
    if tile == length:
        return TilePlan(length, tile, 0, (Tile(0, 0),))
    count = max(2, _count_tiles(length, tile, int(tile * overlap)))
    shared = (tile * count - length) // (count - 1)
    step = tile - shared
    starts = range(0, length - tile, step)
    last = starts[-1] + step
    tiles = (*(Tile(start, 0) for start in starts), Tile(length - tile, last - (length - tile)))
    return TilePlan(length, tile, shared, tiles)


def _count_tiles(length: int, tile: int, shared: int) -> int:
    step = tile - shared
    count = (length - shared) // step
    beyond = ((count + 1) * step + shared) % length
    return count + 1 if beyond != step and beyond <= count * (tile // 2 - shared) else count


def tile_weights(plan: TilePlan, tile: Tile) -> Array:
    """How much each pixel of the tile counts along the axis, float32 (8·tile,); all tiles together give 1 everywhere.

    Smootherstep u³(6u² - 15u + 10) (Perlin 2002) over the overlap, at ends that have a neighbour; 0 where skipped.
    """
    size, overlap, skip = VAE_FACTOR * plan.tile, np.float32(VAE_FACTOR * plan.overlap), VAE_FACTOR * tile.skip
    index = np.arange(size, dtype=np.float32)
    u: Array = (index >= skip).astype(np.float32)
    if plan.overlap and tile.start > 0:
        u = np.minimum(u, (index - skip) / overlap)
    if plan.overlap and tile.start + plan.tile < plan.length:
        u = np.minimum(u, (size - index) / overlap)
    u = np.maximum(u, np.float32(0))
    weights: Array = u * u * u * (u * (u * 6 - 15) + 10)
    return weights
