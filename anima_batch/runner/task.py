"""What making an image is given, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.ops import Array
from anima_batch.files import sha256_bytes
from anima_batch.plan import Measurement, PlannedImage
from anima_batch.runner.guard import ModelSetGuard
from anima_batch.runner.image_log import ImageLog
from anima_batch.runner.record import ImagePaths, Provenance
from anima_batch.runner.recorder import Recorder
from anima_batch.runner.signals import StopRequest
from anima_batch.sampling import SamplerState, initial_state, make_sigmas
from anima_batch.store import CheckpointFolder
from anima_batch.worker import ModelWorker

Forecast = Callable[[Measurement, int], tuple[float | None, float | None]]


@dataclass(frozen=True)
class Setting:
    """What every image of a run is made with."""

    worker: ModelWorker
    provenance: Provenance
    conditioning_folder: Path
    forecast: Forecast  # (this image so far, steps done) -> seconds left of the image and of the batch
    stop: StopRequest
    guard: ModelSetGuard
    recorder: Recorder
    accept_environment: bool = False
    board: str | None = None  # the name of this machine in a fleet


@dataclass(frozen=True)
class Task:
    """What is fixed for one image before its first step."""

    planned: PlannedImage
    paths: ImagePaths
    checkpoints: CheckpointFolder
    sigmas: Array
    fresh: SamplerState
    noise_sha256: str
    environment: Mapping[str, str | None]

    def identity(self, conditioning: Conditioning) -> dict[str, str]:
        """What binds a checkpoint to this image."""
        return {
            "request_id": self.planned.request_id,
            "conditioning": conditioning.sha256,
            "sigmas": self.sigmas.tobytes().hex(),
            "noise": self.noise_sha256,
        }


@dataclass(frozen=True)
class Begun:
    """Where an image stands: the state, its log, and the generation that the next checkpoint gets."""

    state: SamplerState
    log: ImageLog
    generation: int


@dataclass
class Course:
    """How far an image has come, which is what a failure is recorded with.

    `begun` is after the newest good step, `broken` after one whose latents are not finite; `durable_step` is the step
    on disk, `starts` the attempts in a row without a new one, as counted there.
    """

    begun: Begun
    broken: Begun | None = None
    durable_step: int = 0
    starts: int = 0
    sampling: bool = False
    is_full_told: bool = False
    is_unkept_told: bool = False

    @property
    def step(self) -> int | None:
        """The step at hand, from 1; None outside sampling."""
        return self.begun.state.step + 1 if self.sampling else None

    def warn(self, warning: str) -> None:
        """Keep it for the manifest."""
        self.begun = replace(self.begun, log=self.begun.log.warn(warning))


class StoppedError(Exception):
    """The user's signal came first: nothing is tried again."""


def make_task(setting: Setting, planned: PlannedImage, paths: ImagePaths) -> Task:
    """The image's task, with its schedule and its noise."""
    request = planned.image.request
    fresh = initial_state(request)
    return Task(
        planned=planned,
        paths=paths,
        checkpoints=CheckpointFolder(paths.checkpoint),
        sigmas=make_sigmas(request.schedule, request.steps, request.shift),
        fresh=fresh,
        noise_sha256=sha256_bytes(fresh.latents.tobytes()),
        environment=setting.provenance.environment,
    )
