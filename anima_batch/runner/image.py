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
    accept_environment: bool = False


@dataclass(frozen=True)
class _Task:
    """What is fixed for one image before its first step; `identity` binds its checkpoints to it."""

    planned: PlannedImage
    paths: ImagePaths
    conditioning: Conditioning
    sigmas: Array
    noise_sha256: str
    environment: Mapping[str, str | None]

    @property
    def identity(self) -> dict[str, str]:
        return {
            "request_id": self.planned.request_id,
            "conditioning": self.conditioning.sha256,
            "sigmas": self.sigmas.tobytes().hex(),
            "noise": self.noise_sha256,
        }


@dataclass(frozen=True)
class _Begun:
    """Where an image stands: the state, its log, and the generation that the next checkpoint gets."""

    state: SamplerState
    log: ImageLog
    generation: int


def make_image(setting: Setting, planned: PlannedImage, paths: ImagePaths) -> Iterator[Event]:
    """Run or resume one image to its manifest, or to the step after which a stop was asked for.

    Raises EnvironmentChangedError or StorageError with everything durable kept; whatever else goes wrong becomes the
    manifest of a failed image.
    """
    started = time.perf_counter()
    request = planned.image.request
    runtime = " ".join(f"{key} {setting.provenance.environment[key]}" for key in ("onnxruntime", "numpy", "machine"))
    conditioning = load_conditioning(request, setting.pipeline, setting.conditioning_folder, runtime)
    encode_seconds = time.perf_counter() - started
    fresh = initial_state(request)
    task = _Task(
        planned,
        paths,
        conditioning,
        make_sigmas(request.schedule, request.steps, request.shift),
        sha256_bytes(fresh.latents.tobytes()),
        setting.provenance.environment,
    )
    begun = yield from _open_checkpoint(task, fresh, accept_environment=setting.accept_environment)
    warnings = _find_warnings(setting.pipeline, planned)
    yield from (Notice(f"{planned.stem}: {warning}") for warning in warnings if warning not in begun.log.warnings)
    begun = dataclasses.replace(begun, log=begun.log.begin_run(warnings, encode_seconds))
    last = _Last(begun)
    try:
        yield from _denoise(setting, task, last)
        if last.begun.state.step == request.steps and not setting.stop:
            yield from _finish(setting, task, last.begun)
    except (BackendError, _NonFiniteError) as error:
        yield _give_up(setting, task, last.begun, error)


@dataclass
class _Last:
    """The newest step, durable or just failed: what a failure is recorded with."""

    begun: _Begun


class _NonFiniteError(Exception):
    """A step's latents hold NaN or infinity."""


def _denoise(setting: Setting, task: _Task, last: _Last) -> Iterator[Event]:
    """The steps that are left, each durable before the next begins."""
    planned, request = task.planned, task.planned.image.request
    begun = last.begun
    transformer = setting.pipeline.make_transformer(task.sigmas, task.conditioning, request.width, request.height)
    clock = PhaseClock(setting.pipeline.backend.timings, begun.log.busy_seconds)
    passes_left = planned.passes
    for state, report in sample(request, transformer, begun.state):
        log = last.begun.log.add_step(report, clock.take_phases(), clock.busy_seconds)
        last.begun = begun = _Begun(state, log, last.begun.generation)
        if report.nan or report.inf:
            raise _NonFiniteError(
                f"step {report.index}: {report.nan} NaN and {report.inf} infinite latents of {state.latents.size}"
            )
        _save(task, begun)
        last.begun = dataclasses.replace(begun, generation=begun.generation + 1)
        passes_left -= report.passes
        measured = Measurement(request.width * request.height, log.passes, log.denoise_seconds, log.encode_seconds, 0.0)
        yield StepDone(planned.stem, report, request.steps, *setting.forecast(measured, passes_left))
        if setting.stop:
            return


def _finish(setting: Setting, task: _Task, begun: _Begun) -> Iterator[Event]:
    """Decode and record; the order (PNG, then manifest, then the checkpoint goes) survives a cut at any point."""
    started = time.perf_counter()
    pixels = setting.pipeline.decode(begun.state.latents)
    decode_seconds = time.perf_counter() - started
    image = write_image(pixels, task.planned, task.paths, setting.provenance)
    flat = int(pixels.max()) == int(pixels.min())
    outcome = _describe_outcome(task, begun, decode_seconds)
    record_done(task.planned, task.paths, setting.provenance, outcome, image, flat=flat)
    drop_checkpoint(task.paths.checkpoint)
    if flat:
        yield Notice(f"{task.planned.stem}: the picture has one colour only")
    yield ImageDone(task.planned.stem, task.paths.png, task.paths.manifest, outcome.total_seconds)


def _give_up(setting: Setting, task: _Task, begun: _Begun, error: Exception) -> Event:
    """Record a failed image; its last good checkpoint is set aside for whoever wants to look."""
    kind = "non_finite" if isinstance(error, _NonFiniteError) else "backend"
    step = begun.state.step + (kind == "backend")
    record = ErrorRecord(kind=kind, step=min(step, task.planned.image.request.steps), message=str(error))
    record_failed(task.planned, task.paths, setting.provenance, _describe_outcome(task, begun, 0.0), record)
    if task.paths.checkpoint.is_dir():
        set_aside(task.paths.checkpoint)
    return ImageFailed(task.planned.stem, task.paths.manifest, str(error))


def _describe_outcome(task: _Task, begun: _Begun, decode_seconds: float) -> Outcome:
    log = begun.log
    total = log.encode_seconds + log.busy_seconds + decode_seconds
    return Outcome(log, task.sigmas, task.noise_sha256, begun.state.latents, decode_seconds, total)


def _save(task: _Task, begun: _Begun) -> None:
    tensors, sampler = pack_state(begun.state)
    meta: dict[str, Any] = {
        "identity": task.identity,
        "environment": dict(task.environment),
        "sampler": sampler,
        "log": begun.log.to_json(),
    }
    save_checkpoint(task.paths.checkpoint, Checkpoint(begun.generation, begun.state.step, tensors, meta))


def _open_checkpoint(task: _Task, fresh: SamplerState, *, accept_environment: bool) -> Generator[Notice, None, _Begun]:
    """Where the image stands on disk, else the fresh state; a checkpoint that is not this image's is set aside."""
    loaded = load_checkpoint(task.paths.checkpoint)
    yield from (Notice(problem) for problem in loaded.problems)
    checkpoint = loaded.checkpoint
    if checkpoint is None:
        if loaded.problems:
            yield Notice(
                f"{task.planned.stem}: no checkpoint can be used: set aside as {set_aside(task.paths.checkpoint)}"
            )
            return _Begun(fresh, ImageLog(), 0)
        return _Begun(fresh, ImageLog(), loaded.next_generation)
    meta = checkpoint.meta
    wrong = [key for key, value in task.identity.items() if meta["identity"].get(key) != value]
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
        return _Begun(fresh, ImageLog(), 0)
    state = unpack_state(checkpoint.tensors, meta["sampler"])
    return _Begun(state, ImageLog.from_json(meta["log"]), loaded.next_generation)


def _find_warnings(pipeline: Pipeline, planned: PlannedImage) -> list[str]:
    request = planned.image.request
    prompts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
    warnings = [f"{name}: {text}" for name, prompt in prompts.items() for text in pipeline.warn_about(prompt)]
    return warnings + [problem.message for problem in check_request(request) if problem.severity == "warning"]
