"""One image: encode, denoise step by step with each step durable, decode, record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterator

from anima_batch.anima.conditioning import Conditioning
from anima_batch.batch import EmbedsFolder
from anima_batch.errors import AnimaBatchError
from anima_batch.plan import Measurement, PlannedImage, work_left
from anima_batch.runner import attempts
from anima_batch.runner.attempts import QuarantinedError, insist
from anima_batch.runner.conditioning import PromptEncoder, load_conditioning
from anima_batch.runner.events import Event, Notice, StepDone
from anima_batch.runner.image_log import BusyClock, ImageLog
from anima_batch.runner.record import ImagePaths, Outcome
from anima_batch.runner.resume import find_begun, keep_latents, open_checkpoint, save_checkpoint
from anima_batch.runner.task import Begun, Course, Setting, StoppedError, Task, make_task
from anima_batch.sampling import StepReport, check_request
from anima_batch.store import ErrorRecord
from anima_batch.worker import WorkerFault


def make_image(setting: Setting, planned: PlannedImage, paths: ImagePaths) -> Iterator[Event]:
    """Run or resume one image to its manifest, or to the step after which a stop was asked for.

    A stage that fails in fresh processes too, a lack of memory and a step that stays non-finite become the manifest of
    a failed image. Raises EnvironmentChangedError, ModelSetError, WorkerError, BackendError or StorageError with
    everything durable kept.
    """
    task = make_task(setting, planned, paths)
    course = Course(Begun(task.fresh, ImageLog(), 0), durable_step=planned.from_step)
    setting.recorder.prepare()
    try:
        yield from _make_or_give_up(setting, task, course)
    except AnimaBatchError:
        attempts.end(task)
        raise
    attempts.end(task)


def _make_or_give_up(setting: Setting, task: Task, course: Course) -> Iterator[Event]:
    try:
        yield from attempts.begin(task, course)
        yield from _make(setting, task, course)
    except QuarantinedError as error:
        course.begun = find_begun(task) or course.begun
        yield from _give_up(setting, task, course, ErrorRecord(kind="quarantined", step=None, message=str(error)))
    except WorkerFault as fault:
        yield from _give_up(setting, task, course, _record_fault(course, fault), fault.details)
    except MemoryError:
        record = ErrorRecord(kind="memory", step=course.step, message="out of memory in the process that writes files")
        yield from _give_up(setting, task, course, record)
    except StoppedError:
        pass


def _make(setting: Setting, task: Task, course: Course) -> Iterator[Event]:
    planned, request = task.planned, task.planned.image.request
    started = time.perf_counter()
    told: list[str] = []
    model_set = setting.provenance.model_set
    embeds = EmbedsFolder(setting.conditioning_folder, model_set, task.environment)
    encoder = PromptEncoder(setting.worker, model_set, embeds, told.append)
    conditioning, encoded = yield from insist(setting, task, course, lambda: load_conditioning(request, encoder))
    yield from (Notice(line) for line in told)
    encode_seconds = time.perf_counter() - started if encoded else 0.0
    begun = yield from open_checkpoint(task, conditioning, accept_environment=setting.accept_environment)
    tried, course.begun, course.durable_step = course.begun.log.warnings, begun, begun.state.step
    warnings = yield from _find_warnings(setting, task, course)
    yield from (Notice(f"{planned.stem}: {warning}") for warning in warnings if warning not in begun.log.warnings)
    log = course.begun.log.begin_run([*tried, *warnings], encode_seconds, setting.board)
    course.begun = dataclasses.replace(course.begun, log=log)
    yield from _denoise(setting, task, conditioning, course)
    if course.begun.state.step == request.steps and not setting.stop:
        yield from _finish(setting, task, course)


def _denoise(setting: Setting, task: Task, conditioning: Conditioning, course: Course) -> Iterator[Event]:
    """The steps that are left, each durable before the next begins."""
    planned, request = task.planned, task.planned.image.request
    clock = BusyClock(course.begun.log.busy_seconds)
    setting.worker.prepare(request, conditioning)
    course.sampling = True
    while course.begun.state.step < request.steps:
        report = yield from insist(setting, task, course, lambda: _take_step(setting, course, clock))
        setting.guard.check()
        if told := setting.worker.tell_fallback():
            yield Notice(told)
        yield from keep_latents(task, course)
        yield from save_checkpoint(task, conditioning, course)
        left = setting.forecast(_measure(planned.pixels, course.begun.log), report.index)
        yield StepDone(planned.stem, report, request.steps, course.durable_step, *left)
        if setting.stop:
            break
    course.sampling = False


def _measure(pixels: int, log: ImageLog) -> Measurement:
    """What the steps done so far took."""
    passes = [report.passes for report in log.reports]
    work = dataclasses.replace(work_left(pixels, passes, 0, encodes=log.encode_seconds > 0), images=0)
    computed = sum(report.seconds for report in log.reports if report.passes)
    return Measurement(work, computed, log.denoise_seconds - computed, encode_seconds=log.encode_seconds)


def _take_step(setting: Setting, course: Course, clock: BusyClock) -> StepReport:
    """One step further, in memory; raises WorkerFault, also for latents that are not finite."""
    before, course.broken = course.begun, None
    taken = setting.worker.step(before.state)
    report = taken.report
    log = before.log.add_step(report, taken.phases, clock.seconds)
    after = Begun(taken.state, log.warn(taken.fallback) if taken.fallback else log, before.generation)
    if report.nan or report.inf:
        course.broken = after
        counts = f"{report.nan} NaN and {report.inf} infinite latents of {taken.state.latents.size}"
        raise WorkerFault("non_finite", counts)
    course.begun = after
    return report


def _finish(setting: Setting, task: Task, course: Course) -> Iterator[Event]:
    """Decode and record."""
    latents = course.begun.state.latents
    started = time.perf_counter()
    pixels = yield from insist(setting, task, course, lambda: setting.worker.decode(latents))
    decode_seconds = time.perf_counter() - started
    setting.guard.check()
    outcome = _describe_outcome(task, course.begun, decode_seconds)
    yield from setting.recorder.finish(task.planned, task.paths, outcome, pixels)


def _record_fault(course: Course, fault: WorkerFault) -> ErrorRecord:
    where = "" if course.step is None else f"step {course.step}: "
    return ErrorRecord(kind=fault.kind, step=course.step, message=f"{where}{fault}")


def _give_up(setting: Setting, task: Task, course: Course, error: ErrorRecord, details: str = "") -> Iterator[Event]:
    """Record a failed image; `details` go into a log beside the manifest.

    The checkpoint stays, and `--retry-failed` goes on from it; only after a non-finite step it is set aside, since the
    steps before may hold the cause.
    """
    if course.broken is not None and task.paths.checkpoint.is_dir():
        task.checkpoints.set_aside()
    outcome = _describe_outcome(task, course.broken or course.begun, 0.0)
    yield from setting.recorder.give_up(task.planned, task.paths, outcome, error, details)


def _describe_outcome(task: Task, begun: Begun, decode_seconds: float) -> Outcome:
    log = begun.log
    total = log.encode_seconds + log.busy_seconds + decode_seconds
    return Outcome(log, task.sigmas, task.noise_sha256, begun.state.latents, decode_seconds, total)


def _find_warnings(setting: Setting, task: Task, course: Course) -> Generator[Notice, None, list[str]]:
    request = task.planned.image.request
    prompts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
    found = yield from insist(setting, task, course, lambda: setting.worker.find_warnings(list(prompts.values())))
    warnings = [f"{name}: {text}" for name, texts in zip(prompts, found, strict=True) for text in texts]
    return warnings + [problem.message for problem in check_request(request) if problem.severity == "warning"]
