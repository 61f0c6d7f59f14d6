"""How much work an image is, and how long that takes by what was measured; pure."""

from __future__ import annotations

import bisect
import functools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

MEASURED_IMAGES = 2  # after so many a job's own times say more than a simulation


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done at one size: pictures, transformer passes, steps that run any, steps forecast, encodings.

    An image's prompts are encoded together, which is one encoding however many they are: it opens the text encoder.
    """

    pixels: int
    images: int = 0
    passes: int = 0
    computed: int = 0
    forecasts: int = 0
    encodings: int = 0

    def plus(self, other: Work, times: int = 1) -> Work:
        """Both at the size of this one, the other so many times (-1 takes it away)."""
        return Work(
            self.pixels,
            self.images + times * other.images,
            self.passes + times * other.passes,
            self.computed + times * other.computed,
            self.forecasts + times * other.forecasts,
            self.encodings + times * other.encodings,
        )


def work_left(pixels: int, step_passes: Sequence[int], step: int, *, encodes: bool = False) -> Work:
    """Of an image after so many steps; `encodes`: a prompt of its is still to be encoded."""
    left = step_passes[step:]
    computed = sum(map(bool, left))
    return Work(pixels, 1, sum(left), computed, len(left) - computed, int(encodes))


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds that an image took, and for how much work.

    `computed_seconds`: of the steps that ran passes; `fixed_seconds`: the part of them that a larger picture would not
    change, since sessions were opened and closed. `other_seconds`: beside all stages, for saving each step.
    """

    work: Work
    computed_seconds: float
    forecast_seconds: float = 0.0
    fixed_seconds: float = 0.0
    other_seconds: float = 0.0
    encode_seconds: float = 0.0
    decode_seconds: float = 0.0


Estimate = Callable[[Work], float]


@dataclass(frozen=True)
class Rates:
    """Speeds learned from images; before there are two, `simulated` says how long work takes, if it is there."""

    measurements: tuple[Measurement, ...] = ()
    simulated: Estimate | None = None

    def add(self, measurement: Measurement) -> Rates:
        """The rates with one more image behind them."""
        return Rates((*self.measurements, measurement), self.simulated)

    @property
    def is_simulated(self) -> bool:
        """Whether estimates are those of a simulation."""
        return self.simulated is not None and len(self.measurements) < MEASURED_IMAGES

    def estimate(self, work: Work) -> float | None:
        """Seconds for the work; None while nothing is known."""
        if self.simulated is not None and self.is_simulated:
            return self.simulated(work)
        if work.passes and not self._passes:
            return None
        steps = work.computed + work.forecasts
        return (
            work.passes * self._passes.at(work.pixels)
            + work.computed * self._fixed
            + work.forecasts * self._forecasts.at(work.pixels)
            + steps * self._other
            + work.images * self._decodings.at(work.pixels)
            + work.encodings * self._encoding
        )

    # Computed once for all the images of a plan and all the steps of an image: a job has up to 100,000 of them.
    @functools.cached_property
    def _passes(self) -> Speeds:
        return Speeds.of(
            (m.work.pixels, (m.computed_seconds - m.fixed_seconds) / m.work.passes)
            for m in self.measurements
            if m.work.passes
        )

    @functools.cached_property
    def _forecasts(self) -> Speeds:
        return Speeds.of(
            (m.work.pixels, m.forecast_seconds / m.work.forecasts) for m in self.measurements if m.work.forecasts
        )

    @functools.cached_property
    def _decodings(self) -> Speeds:
        return Speeds.of((m.work.pixels, m.decode_seconds) for m in self.measurements if m.work.images)

    @functools.cached_property
    def _fixed(self) -> float:
        return _median(m.fixed_seconds / m.work.computed for m in self.measurements if m.work.computed)

    @functools.cached_property
    def _other(self) -> float:
        steps = ((m, m.work.computed + m.work.forecasts) for m in self.measurements)
        return _median(m.other_seconds / count for m, count in steps if count)

    @functools.cached_property
    def _encoding(self) -> float:
        return _median(m.encode_seconds for m in self.measurements if m.work.encodings)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds of one piece of work at the sizes at which it was measured, (pixels, seconds) by size."""

    known: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, measured: Iterable[tuple[int, float]]) -> Speeds:
        """Medians, so that one slow image does not act on them."""
        by_pixels: dict[int, list[float]] = {}
        for pixels, seconds in measured:
            by_pixels.setdefault(pixels, []).append(seconds)
        return cls(tuple((pixels, statistics.median(by_pixels[pixels])) for pixels in sorted(by_pixels)))

    def __bool__(self) -> bool:
        return bool(self.known)

    def at(self, pixels: int) -> float:
        """Between two sizes that are known in proportion to both, else to the nearest one; 0 while none is known."""
        if not self.known:
            return 0.0
        place = bisect.bisect_left(self.known, (pixels, 0.0))
        if 0 < place < len(self.known):
            (small, low), (large, high) = self.known[place - 1 : place + 1]
            return low + (high - low) * (pixels - small) / (large - small)
        nearest, seconds = self.known[min(place, len(self.known) - 1)]
        return seconds * pixels / nearest


def _median(values: Iterable[float]) -> float:
    return statistics.median(found) if (found := list(values)) else 0.0
