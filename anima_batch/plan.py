"""What to do with each image of a job, how long it will take and how much disk it needs; pure."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anima_batch.job import JobImage

Action = Literal["run", "resume", "skip"]
Status = Literal["done", "failed", "begun", "waiting"]

MANIFEST_BYTES = 80_000  # of a 50-step image of a model set with 84 subgraphs, generously
PNG_SHARE = 0.75  # of the raw RGB bytes; photographs of the model's kind compress to about this


@dataclass(frozen=True, slots=True)
class Progress:
    """What lies on disk for a request: its status, the steps of its checkpoint, and why if there is more to say."""

    status: Status = "waiting"
    step: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds that a finished image took."""

    pixels: int
    passes: int
    denoise_seconds: float
    encode_seconds: float
    decode_seconds: float


@dataclass(frozen=True)
class Rates:
    """Speeds learned from finished images; empty until there are any."""

    measurements: tuple[Measurement, ...] = ()

    def add(self, measurement: Measurement) -> Rates:
        """The rates with one more image behind them."""
        return Rates((*self.measurements, measurement))

    def seconds_per_pass(self, pixels: int) -> float | None:
        """Median over the images nearest in size, scaled by the number of pixels; None while nothing is known."""
        return _scale(self._passes, pixels)

    def decode_seconds(self, pixels: int) -> float:
        """As `seconds_per_pass`; 0 while nothing is known."""
        return _scale(self._decodings, pixels) or 0.0

    def encode_seconds(self) -> float:
        """Mean over all images: most find their prompt encoded already."""
        return self._encoding

    # Computed once for all the images of a plan and all the steps of an image: a job has up to 100,000 of them.
    @functools.cached_property
    def _passes(self) -> Mapping[int, float]:
        return _medians((m.pixels, m.denoise_seconds / m.passes) for m in self.measurements if m.passes)

    @functools.cached_property
    def _decodings(self) -> Mapping[int, float]:
        return _medians((m.pixels, m.decode_seconds) for m in self.measurements)

    @functools.cached_property
    def _encoding(self) -> float:
        return statistics.fmean(m.encode_seconds for m in self.measurements) if self.measurements else 0.0

    def estimate(self, pixels: int, passes: float, *, encode: bool = True) -> float | None:
        """Seconds for the passes and the decoding of an image; None while nothing is known."""
        rate = self.seconds_per_pass(pixels)
        if rate is None:
            return None
        return passes * rate + self.decode_seconds(pixels) + (self.encode_seconds() if encode else 0.0)


def _medians(known: Iterable[tuple[int, float]]) -> dict[int, float]:
    by_pixels: dict[int, list[float]] = {}
    for pixels, seconds in known:
        by_pixels.setdefault(pixels, []).append(seconds)
    return {pixels: statistics.median(seconds) for pixels, seconds in by_pixels.items()}


def _scale(known: Mapping[int, float], pixels: int) -> float | None:
    if not known:
        return None
    nearest = min(known, key=lambda size: abs(size - pixels))
    return known[nearest] * pixels / nearest


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """One image: what to do, from which step (steps done so far), the transformer passes left, and why."""

    image: JobImage
    request_id: str
    action: Action
    status: Status
    from_step: int
    passes: int
    estimated_seconds: float | None
    reason: str

    @property
    def stem(self) -> str:
        """The name of its files, without suffix."""
        return self.image.stem(self.request_id)

    @property
    def pixels(self) -> int:
        """Of the picture."""
        return self.image.request.width * self.image.request.height

    @property
    def encodes(self) -> bool:
        """Whether its prompts may still have to be encoded; a begun image has done that."""
        return self.from_step == 0


@dataclass(frozen=True)
class Plan:
    """All images of a job in order; what the largest one's checkpoints take, and the embeddings of one prompt."""

    images: tuple[PlannedImage, ...]
    checkpoint_bytes: int = 0
    embeds_bytes: int = 0

    @property
    def pending(self) -> tuple[PlannedImage, ...]:
        """The images to run or resume, in order."""
        return tuple(planned for planned in self.images if planned.action != "skip")

    @property
    def estimated_seconds(self) -> float | None:
        """For all pending images; None while nothing is known."""
        return _sum_known(planned.estimated_seconds for planned in self.pending)

    def count(self, status: Status) -> int:
        """How many images have that status."""
        return sum(planned.status == status for planned in self.images)

    @property
    def passes(self) -> int:
        """Transformer passes still to run."""
        return sum(planned.passes for planned in self.pending)

    @property
    def disk_bytes(self) -> int:
        """What all pending images will need."""
        return self.disk_bytes_of(self.pending)

    def disk_bytes_of(self, pending: Sequence[PlannedImage]) -> int:
        """What a part of them will need: pictures, manifests, prompts, and the checkpoints of one image at a time."""
        pixels = sum(planned.pixels for planned in pending)
        checkpoints = self.checkpoint_bytes if pending else 0
        embeds = self.embeds_bytes * _count_prompts(pending)
        return int(pixels * 3 * PNG_SHARE) + len(pending) * MANIFEST_BYTES + embeds + checkpoints


def _count_prompts(pending: Sequence[PlannedImage]) -> int:
    """Different texts that may still have to be encoded."""
    requests = [planned.image.request for planned in pending if planned.encodes]
    prompts = {request.prompt for request in requests}
    return len(prompts | {request.negative_prompt for request in requests if request.guidance_scale != 1.0})


@dataclass(frozen=True)
class Workload:
    """Images and passes still to run, added up by size so that an estimate costs nothing."""

    by_pixels: Mapping[int, tuple[int, int, int]]  # pixels -> images, passes, images whose prompts are to be encoded

    @classmethod
    def of(cls, pending: Iterable[PlannedImage]) -> Workload:
        """The sum over planned images."""
        sums: dict[int, tuple[int, int, int]] = {}
        for planned in pending:
            images, passes, encodings = sums.get(planned.pixels, (0, 0, 0))
            sums[planned.pixels] = (images + 1, passes + planned.passes, encodings + planned.encodes)
        return cls(sums)

    def without(self, planned: PlannedImage) -> Workload:
        """The sum less one of its images."""
        images, passes, encodings = self.by_pixels[planned.pixels]
        left = (images - 1, passes - planned.passes, encodings - planned.encodes)
        return Workload({**self.by_pixels, planned.pixels: left})

    def estimate(self, rates: Rates) -> float | None:
        """Seconds for all of it; None while nothing is known."""
        encode = rates.encode_seconds()
        return _sum_known(
            None
            if (one := rates.estimate(pixels, passes / images, encode=False)) is None
            else one * images + encode * n
            for pixels, (images, passes, n) in self.by_pixels.items()
            if images
        )


def make_plan(
    images: Iterable[tuple[JobImage, str, tuple[int, ...]]],
    progress: Mapping[str, Progress],
    rates: Rates,
    *,
    checkpoint_bytes: int = 0,
    embeds_bytes: int = 0,
    retry_failed: bool = False,
) -> Plan:
    """The plan for (image, request id, passes of each step); an id that `progress` lacks is waiting."""
    estimate, waiting = functools.cache(rates.estimate), Progress()
    planned = tuple(
        _plan_image(image, request_id, passes, progress.get(request_id, waiting), estimate, retry_failed=retry_failed)
        for image, request_id, passes in images
    )
    return Plan(planned, checkpoint_bytes, embeds_bytes)


def _plan_image(
    image: JobImage,
    request_id: str,
    passes: tuple[int, ...],
    found: Progress,
    estimate: Callable[..., float | None],
    *,
    retry_failed: bool,
) -> PlannedImage:
    if found.status == "done" or (found.status == "failed" and not retry_failed):
        steps = image.request.steps if found.status == "done" else found.step
        return PlannedImage(image, request_id, "skip", found.status, steps, 0, 0.0, found.reason)
    from_step = found.step
    left = sum(passes[from_step:])
    pixels = image.request.width * image.request.height
    seconds = estimate(pixels, left, encode=from_step == 0)
    action: Action = "resume" if from_step else "run"
    return PlannedImage(image, request_id, action, found.status, from_step, left, seconds, found.reason)


def _sum_known(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
