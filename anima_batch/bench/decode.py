"""What the decoder takes, whole and in tiles: time, memory, and how far tiles are from the whole picture."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anima_batch.anima.config import LATENT_CHANNELS, PATCH, VAE_FACTOR
from anima_batch.anima.ops import Array
from anima_batch.anima.sessions import open_session
from anima_batch.anima.vae import MIN_TILE, decode
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.batch import DecodeNeed
from anima_batch.bench.step import in_fresh_process, read_peak_bytes
from anima_batch.errors import BackendError, UsageError
from anima_batch.measures import Picture, measure_psnr, measure_ssim
from anima_batch.model_set import ModelSet

SEED = 20260812


@dataclass(frozen=True)
class DecodeSetup:
    """A picture of a size, decoded so many times after a first one."""

    model_set: ModelSet
    width: int
    height: int
    rounds: int


@dataclass(frozen=True)
class Decoding:
    """What decoding takes with so many threads, in tiles of so many latent pixels or whole (None).

    `seconds` is the median of the rounds, `first_seconds` what a picture waits for its own: opened, run once, closed.
    `need_bytes` is what the process held at the most beside what it held before.
    """

    threads: int
    tile: int | None
    seconds: float
    first_seconds: float
    need_bytes: int
    peak_bytes: int

    @property
    def how(self) -> str:
        """For people: a tile in latent pixels."""
        return "whole" if self.tile is None else f"tile {self.tile}"


@dataclass(frozen=True)
class DecodeComparison:
    """A decoding, and its picture beside the whole one: PSNR in dB, infinite where they are equal, and SSIM."""

    decoding: Decoding
    psnr: float
    ssim: float


def make_decode_setup(model_set: ModelSet, size: str | None, rounds: int) -> DecodeSetup:
    """At any size in pixels, the set's first one otherwise; raises UsageError."""
    width, height = model_set.description.sizes[0]
    if size is not None:
        side, least = PATCH * VAE_FACTOR, 2 * MIN_TILE * VAE_FACTOR
        match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", size)
        width, height = (int(match[1]), int(match[2])) if match else (0, 0)
        if min(width, height) < least or width % side or height % side:
            raise UsageError(f"--size: must be WIDTHxHEIGHT, multiples of {side} from {least} on, got {size}")
    return DecodeSetup(model_set, width, height, rounds)


def list_tiles(setup: DecodeSetup) -> list[int]:
    """A half and a quarter of the shorter side, where that is a tile."""
    shorter = min(setup.width, setup.height) // VAE_FACTOR
    return [tile for tile in (shorter // 2, shorter // 4) if tile >= MIN_TILE]


def bench_decode(setup: DecodeSetup, threads: Sequence[int], tiles: Sequence[int]) -> Iterator[DecodeComparison]:
    """The whole picture and its tiles with each number of threads, each in a fresh process.

    Raises BackendError, ModelSetError or UsageError.
    """
    longer = max(setup.width, setup.height) // VAE_FACTOR
    if wrong := [tile for tile in tiles if not MIN_TILE <= tile < longer]:
        raise UsageError(f"--tile: must be {MIN_TILE} to {longer - 1} latent pixels here, got {wrong[0]}")
    whole: Picture | None = None
    for count in threads:
        for tile in (None, *tiles):
            decoding, picture = _measure_apart(setup, count, tile)
            whole = picture if whole is None else whole
            yield DecodeComparison(decoding, measure_psnr(picture, whole), measure_ssim(picture, whole))


def _measure_apart(setup: DecodeSetup, threads: int, tile: int | None) -> tuple[Decoding, Picture]:
    try:
        return in_fresh_process(measure_decoding, setup, threads, tile)
    except BrokenProcessPool as error:
        what = "the whole picture" if tile is None else f"a tile of {tile}"
        raise BackendError(
            f"bench decode: the process died over {what} with {threads} threads, of a lack of memory if it was "
            "killed: give a smaller --size"
        ) from error


def measure_decoding(setup: DecodeSetup, threads: int, tile: int | None) -> tuple[Decoding, Picture]:
    """One way of decoding in this process, and its picture."""
    latents = make_latents(setup.height // VAE_FACTOR, setup.width // VAE_FACTOR)
    config = setup.model_set.description.vae.model_copy(update={"tile": tile})
    before, started = read_peak_bytes(), time.perf_counter()
    with contextlib.closing(open_session(OnnxBackend(threads), setup.model_set, "vae.decoder")) as session:
        picture, seconds = decode(session, latents, config), []
        first = time.perf_counter() - started
        for _ in range(setup.rounds):
            started = time.perf_counter()
            picture = decode(session, latents, config)
            seconds.append(time.perf_counter() - started)
        closing = time.perf_counter()
    first += time.perf_counter() - closing
    peak = read_peak_bytes()
    return Decoding(threads, tile, statistics.median(seconds), first, peak - before, peak), picture


def make_latents(height: int, width: int) -> Array:
    """Latents (16, h, w) as a picture has them: noise whose amplitudes fall with the frequency, of variance 1.

    Natural pictures' spectra are of this kind (Field 1987); white noise would show no tile's edge.
    """
    white = np.random.default_rng(SEED).standard_normal((LATENT_CHANNELS, height, width))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf  # no mean
    pink: npt.NDArray[np.float64] = np.fft.irfft2(np.fft.rfft2(white) / frequency, s=(height, width))
    latents: Array = (pink / pink.std(axis=(1, 2), keepdims=True)).astype(np.float32)
    return latents


def choose_decoding(found: Sequence[DecodeComparison], available_bytes: int) -> DecodeComparison | None:
    """What to take: whole if that fits into the memory, else the tiles nearest to it that fit; the fastest threads.

    None where nothing fits.
    """
    fitting = [entry for entry in found if entry.decoding.need_bytes <= available_bytes]
    return min(fitting, key=lambda entry: (-_tile(entry), entry.decoding.seconds), default=None)


def list_needs(setup: DecodeSetup, found: Sequence[DecodeComparison]) -> list[DecodeNeed]:
    """The memory that each took, for the check before a run."""
    return [
        DecodeNeed(
            width=setup.width,
            height=setup.height,
            tile=entry.decoding.tile,
            threads=entry.decoding.threads,
            bytes=entry.decoding.need_bytes,
        )
        for entry in found
    ]


def _tile(entry: DecodeComparison) -> float:
    """Of two that fit, the larger one: fewer edges, and less that is computed twice."""
    return float("inf") if entry.decoding.tile is None else entry.decoding.tile
