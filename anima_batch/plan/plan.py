"""What to do with each image of a job, how long it will take and how much disk it needs; pure."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from anima_batch.job import JobImage
from anima_batch.plan.rates import Rates, Work, work_left

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
class PlannedImage:
    """One image: what to do, from which step (steps done so far), the transformer passes of each step, and why.

    `new_prompts`: how many of its prompts no file keeps and no image before it encodes.
    """

    image: JobImage
    request_id: str
    action: Action
    status: Status
    from_step: int
    step_passes: tuple[int, ...]
    new_prompts: int
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
    def passes(self) -> int:
        """Transformer passes left."""
        return 0 if self.action == "skip" else sum(self.step_passes[self.from_step :])

    def work_after(self, step: int) -> Work:
        """What is left after so many steps."""
        encodes = self.new_prompts > 0 and step == self.from_step
        return work_left(self.pixels, self.step_passes, step, encodes=encodes)


@dataclass(frozen=True, slots=True)
class Sizes:
    """On disk: all checkpoints of the largest image, and one prompt's embeddings; latents of each step, where kept."""

    checkpoint_bytes: int = 0
    embeds_bytes: int = 0
    keeps_latents: bool = False


@dataclass(frozen=True)
class Plan:
    """All images of a job in order, and how large their files are.

    `simulated`: its times are not measured ones. `warnings`: what it could not use.
    """

    images: tuple[PlannedImage, ...]
    sizes: Sizes = Sizes()
    simulated: bool = False
    warnings: tuple[str, ...] = ()

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
        """What a part of them will need: pictures, manifests, prompts, kept latents, and one image's checkpoints."""
        pixels = sum(planned.pixels for planned in pending)
        checkpoints = self.sizes.checkpoint_bytes if pending else 0
        embeds = self.sizes.embeds_bytes * sum(planned.new_prompts for planned in pending)
        # 16 channels of 4 bytes for 8x8 pixels: a byte for each pixel and step.
        kept = pending if self.sizes.keeps_latents else ()
        latents = sum(planned.pixels * len(planned.step_passes) for planned in kept)
        return int(pixels * 3 * PNG_SHARE) + len(pending) * MANIFEST_BYTES + embeds + checkpoints + latents


@dataclass(frozen=True)
class Workload:
    """What is still to be done, added up by size so that an estimate costs nothing."""

    by_pixels: Mapping[int, Work]

    @classmethod
    def of(cls, pending: Iterable[PlannedImage]) -> Workload:
        """The sum over planned images."""
        sums: dict[int, Work] = {}
        for planned in pending:
            work = planned.work_after(planned.from_step)
            sums[work.pixels] = sums.get(work.pixels, Work(work.pixels)).plus(work)
        return cls(sums)

    def without(self, planned: PlannedImage) -> Workload:
        """The sum less one of its images."""
        left = self.by_pixels[planned.pixels].plus(planned.work_after(planned.from_step), -1)
        return Workload({**self.by_pixels, planned.pixels: left})

    def estimate(self, rates: Rates) -> float | None:
        """Seconds for all of it; None while nothing is known."""
        return _sum_known(rates.estimate(work) for work in self.by_pixels.values() if work.images)


def make_plan(
    images: Iterable[tuple[JobImage, str, tuple[int, ...]]],
    progress: Mapping[str, Progress],
    rates: Rates,
    *,
    kept: Collection[str] = (),
    sizes: Sizes = Sizes(),
    retry_failed: bool = False,
) -> Plan:
    """The plan for (image, request id, passes of each step); an id that `progress` lacks is waiting.

    `kept`: the prompts whose embeddings lie on disk; each other one is encoded by the first image that has it.
    """
    waiting, encoded = Progress(), set(kept)

    @functools.cache
    def estimate(pixels: int, passes: tuple[int, ...], step: int, encodes: bool) -> float | None:
        return rates.estimate(work_left(pixels, passes, step, encodes=encodes))

    def plan_image(image: JobImage, request_id: str, passes: tuple[int, ...]) -> PlannedImage:
        found, request = progress.get(request_id, waiting), image.request
        if found.status == "done" or (found.status == "failed" and not retry_failed):
            steps = request.steps if found.status == "done" else found.step
            return PlannedImage(image, request_id, "skip", found.status, steps, passes, 0, 0.0, found.reason)
        new = set(request.prompts) - encoded
        encoded.update(new)
        seconds = estimate(request.width * request.height, passes, found.step, bool(new))
        action: Action = "resume" if found.step else "run"
        return PlannedImage(
            image, request_id, action, found.status, found.step, passes, len(new), seconds, found.reason
        )

    planned = tuple(itertools.starmap(plan_image, images))
    return Plan(planned, sizes, simulated=rates.is_simulated)


def _sum_known(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
