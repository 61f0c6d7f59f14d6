"""One image: encode, denoise step by step with each step durable, decode, record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anima_batch.anima.ops import Array
from anima_batch.anima.pipeline import Conditioning, Pipeline
from anima_batch.environment import changed_environment
from anima_batch.errors import BackendError, EnvironmentChangedError
from anima_batch.files import set_aside, sha256_bytes
from anima_batch.plan import Measurement, PlannedImage
from anima_batch.runner.conditioning import load_conditioning
from anima_batch.runner.events import Event, ImageDone, ImageFailed, Notice, StepDone
from anima_batch.runner.guard import ModelSetGuard
from anima_batch.runner.image_log import ImageLog, PhaseClock
from anima_batch.runner.record import ImagePaths, Outcome, Provenance, record_done, record_failed, write_image
from anima_batch.runner.signals import StopRequest
from anima_batch.sampling import (
    SamplerState,
    check_request,
    initial_state,
    make_sigmas,
    pack_state,
    sample,
    unpack_state,
)
from anima_batch.store import (
    Checkpoint,
    ErrorRecord,
    drop_checkpoint,
    load_checkpoint,
    save_checkpoint,
)

Forecast = Callable[[Measurement, int], tuple[float | None, float | None]]


@dataclass(frozen=True)
class Setting:
    """What every image of a run is made with."""

    pipeline: Pipeline
    provenance: Provenance
    conditioning_folder: Path
    forecast: Forecast  # (this image so far, passes left) -> seconds left of the image and of the batch
    stop: StopRequest
    guard: ModelSetGuard
    accept_environment: bool = False


@dataclass(frozen=True)
class _Task:
    """What is fixed for one image before its first step."""

    planned: PlannedImage
    paths: ImagePaths
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
class _Begun:
    """Where an image stands: the state, its log, and the generation that the next checkpoint gets."""

    state: SamplerState
    log: ImageLog
    generation: int


@dataclass
class _Last:
    """The newest step, durable or just failed, and whether sampling is going on: what a failure is recorded with."""

    begun: _Begun
    sampling: bool = False


class _NonFiniteError(Exception):
    """A step's latents hold NaN or infinity."""


def make_image(setting: Setting, planned: PlannedImage, paths: ImagePaths) -> Iterator[Event]:
    """Run or resume one image to its manifest, or to the step after which a stop was asked for.

    A runtime that fails, a lack of memory and a non-finite step become the manifest of a failed image. Raises
    EnvironmentChangedError, ModelSetError or StorageError with everything durable kept.
    """
    request = planned.image.request
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    fresh = initial_state(request)
    noise = sha256_bytes(fresh.latents.tobytes())
    task = _Task(planned, paths, sigmas, fresh, noise, setting.provenance.environment)
    last = _Last(_Begun(task.fresh, ImageLog(), 0))
    try:
        started = time.perf_counter()
        conditioning = load_conditioning(request, setting.pipeline, setting.conditioning_folder, task.environment)
        encode_seconds = time.perf_counter() - started
        begun = yield from _open_checkpoint(task, conditioning, accept_environment=setting.accept_environment)
        warnings = _find_warnings(setting.pipeline, planned)
        yield from (Notice(f"{planned.stem}: {warning}") for warning in warnings if warning not in begun.log.warnings)
        last.begun = dataclasses.replace(begun, log=begun.log.begin_run(warnings, encode_seconds))
        yield from _denoise(setting, task, conditioning, last)
        if last.begun.state.step == request.steps and not setting.stop:
            yield from _finish(setting, task, last.begun)
    except (BackendError, MemoryError, _NonFiniteError) as error:
        yield _give_up(setting, task, last, error)


def _denoise(setting: Setting, task: _Task, conditioning: Conditioning, last: _Last) -> Iterator[Event]:
    """The steps that are left, each durable before the next begins."""
    planned, request = task.planned, task.planned.image.request
    clock = PhaseClock(setting.pipeline.backend.timings, last.begun.log.busy_seconds)
    transformer = setting.pipeline.make_transformer(task.sigmas, conditioning, request.width, request.height)
    passes_left = planned.passes
    last.sampling = True
    for state, report in sample(request, transformer, last.begun.state):
        log = last.begun.log.add_step(report, clock.take_phases(), clock.busy_seconds)
        last.begun = begun = _Begun(state, log, last.begun.generation)
        if report.nan or report.inf:
            counts = f"{report.nan} NaN and {report.inf} infinite latents of {state.latents.size}"
            raise _NonFiniteError(f"step {report.index}: {counts}")
        setting.guard.check()
        _save(task, conditioning, begun)
        last.begun = dataclasses.replace(begun, generation=begun.generation + 1)
        passes_left -= report.passes
        measured = Measurement(request.width * request.height, log.passes, log.denoise_seconds, log.encode_seconds, 0.0)
        yield StepDone(planned.stem, report, request.steps, *setting.forecast(measured, passes_left))
        if setting.stop:
            break
    last.sampling = False


def _finish(setting: Setting, task: _Task, begun: _Begun) -> Iterator[Event]:
    """Decode and record; the order (PNG, then manifest, then the checkpoint goes) survives a cut at any point."""
    started = time.perf_counter()
    pixels = setting.pipeline.decode(begun.state.latents)
    decode_seconds = time.perf_counter() - started
    setting.guard.check()
    image = write_image(pixels, task.planned, task.paths, setting.provenance)
    flat = int(pixels.max()) == int(pixels.min())
    outcome = _describe_outcome(task, begun, decode_seconds)
    record_done(task.planned, task.paths, setting.provenance, outcome, image, flat=flat)
    drop_checkpoint(task.paths.checkpoint)
    if flat:
        yield Notice(f"{task.planned.stem}: the picture has one colour only")
    yield ImageDone(task.planned.stem, task.paths.png, task.paths.manifest, outcome.total_seconds)


def _give_up(setting: Setting, task: _Task, last: _Last, error: Exception) -> Event:
    """Record a failed image.

    After a failed runtime the checkpoint stays, and `--retry-failed` goes on from it; after a non-finite step it is set
    aside, since the steps before may hold the cause.
    """
    steps_done = last.begun.state.step
    if isinstance(error, _NonFiniteError):
        record = ErrorRecord(kind="non_finite", step=steps_done, message=str(error))
        if task.paths.checkpoint.is_dir():
            set_aside(task.paths.checkpoint)
    else:
        kind, message = ("memory", "out of memory") if isinstance(error, MemoryError) else ("backend", str(error))
        record = ErrorRecord(kind=kind, step=steps_done + 1 if last.sampling else None, message=message)
    record_failed(task.planned, task.paths, setting.provenance, _describe_outcome(task, last.begun, 0.0), record)
    return ImageFailed(task.planned.stem, task.paths.manifest, record.message)


def _describe_outcome(task: _Task, begun: _Begun, decode_seconds: float) -> Outcome:
    log = begun.log
    total = log.encode_seconds + log.busy_seconds + decode_seconds
    return Outcome(log, task.sigmas, task.noise_sha256, begun.state.latents, decode_seconds, total)


def _save(task: _Task, conditioning: Conditioning, begun: _Begun) -> None:
    tensors, sampler = pack_state(begun.state)
    meta: dict[str, Any] = {
        "identity": task.identity(conditioning),
        "environment": dict(task.environment),
        "sampler": sampler,
        "log": begun.log.to_json(),
    }
    save_checkpoint(task.paths.checkpoint, Checkpoint(begun.generation, begun.state.step, tensors, meta))


def _open_checkpoint(
    task: _Task, conditioning: Conditioning, *, accept_environment: bool
) -> Generator[Notice, None, _Begun]:
    """Where the image stands on disk, else the fresh state; a checkpoint that is not this image's is set aside."""
    loaded = load_checkpoint(task.paths.checkpoint)
    yield from (Notice(problem) for problem in loaded.problems)
    checkpoint = loaded.checkpoint
    if checkpoint is None:
        if loaded.problems:
            yield Notice(
                f"{task.planned.stem}: no checkpoint can be used: set aside as {set_aside(task.paths.checkpoint)}"
            )
            return _Begun(task.fresh, ImageLog(), 0)
        return _Begun(task.fresh, ImageLog(), loaded.next_generation)
    meta = checkpoint.meta
    wrong = [key for key, value in task.identity(conditioning).items() if meta["identity"].get(key) != value]
    changed = changed_environment(meta["environment"], task.environment)
    if changed and not wrong and not accept_environment:
        raise EnvironmentChangedError(
            f"{task.paths.checkpoint}: made with another environment ({'; '.join(changed)}): go back to it, "
            "or restart this image with --accept-environment"
        )
    if wrong or changed:
        reason = f"other {', '.join(wrong)}" if wrong else "; ".join(changed)
        aside = set_aside(task.paths.checkpoint)
        yield Notice(f"{task.planned.stem}: {checkpoint.step} steps set aside as {aside}: {reason}: starts again")
        return _Begun(task.fresh, ImageLog(), 0)
    state = unpack_state(checkpoint.tensors, meta["sampler"])
    return _Begun(state, ImageLog.from_json(meta["log"]), loaded.next_generation)


def _find_warnings(pipeline: Pipeline, planned: PlannedImage) -> list[str]:
    request = planned.image.request
    prompts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
    warnings = [f"{name}: {text}" for name, prompt in prompts.items() for text in pipeline.warn_about(prompt)]
    return warnings + [problem.message for problem in check_request(request) if problem.severity == "warning"]
