"""An image's checkpoints: what it goes on from, and what is saved after each step."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any

from anima_batch.anima.conditioning import Conditioning
from anima_batch.environment import changed_environment
from anima_batch.errors import EnvironmentChangedError, StorageError
from anima_batch.files import is_disk_full
from anima_batch.job import ImageRequest
from anima_batch.runner.events import Notice
from anima_batch.runner.image_log import ImageLog
from anima_batch.runner.task import Begun, Course, Task
from anima_batch.sampling import SamplerState, find_state_fault, pack_state, unpack_state
from anima_batch.store import Checkpoint, CorruptError, write_latents


def open_checkpoint(
    task: Task, conditioning: Conditioning, *, accept_environment: bool
) -> Generator[Notice, None, Begun]:
    """Where the image stands on disk, else the fresh state; a checkpoint that is not this image's is set aside."""
    loaded = task.checkpoints.load()
    yield from (Notice(problem) for problem in loaded.problems)
    checkpoint, stem = loaded.checkpoint, task.planned.stem
    if checkpoint is None:
        if loaded.problems:
            yield Notice(f"{stem}: no checkpoint can be used: set aside as {task.checkpoints.set_aside()}")
            return Begun(task.fresh, ImageLog(), 0)
        return Begun(task.fresh, ImageLog(), loaded.next_generation)
    try:
        wrong, changed = _compare(task, conditioning, checkpoint)
        if not wrong and not changed:
            return Begun(*open_state(checkpoint, task.planned.image.request, task.fresh), loaded.next_generation)
    except CorruptError as error:
        aside = task.checkpoints.set_aside()
        yield Notice(f"{stem}: {checkpoint.step} steps set aside as {aside}: {error}: starts again")
        return Begun(task.fresh, ImageLog(), 0)
    if changed and not wrong and not accept_environment:
        raise EnvironmentChangedError(
            f"{task.paths.checkpoint}: made with another environment ({'; '.join(changed)}): go back to it, "
            "or restart this image with --accept-environment"
        )
    reason = f"other {', '.join(wrong)}" if wrong else "; ".join(changed)
    aside = task.checkpoints.set_aside()
    yield Notice(f"{stem}: {checkpoint.step} steps set aside as {aside}: {reason}: starts again")
    return Begun(task.fresh, ImageLog(), 0)


def find_begun(task: Task) -> Begun | None:
    """What lies on disk of an image that is given up before it is gone on with, for its manifest."""
    loaded = task.checkpoints.load()
    if loaded.checkpoint is None:
        return None
    try:
        return Begun(*open_state(loaded.checkpoint, task.planned.image.request, task.fresh), loaded.next_generation)
    except CorruptError:  # it will be set aside when it is gone on with
        return None


def _compare(task: Task, conditioning: Conditioning, checkpoint: Checkpoint) -> tuple[list[str], list[str]]:
    """The names of what the checkpoint was made from and is not the image's, and the versions that changed since."""
    identity, environment = (checkpoint.meta.get(key) for key in ("identity", "environment"))
    if not isinstance(identity, Mapping) or not isinstance(environment, Mapping):
        raise CorruptError("the checkpoint does not say what it was made from")
    wrong = [key for key, value in task.identity(conditioning).items() if identity.get(key) != value]
    return wrong, changed_environment(environment, task.environment)


def open_state(checkpoint: Checkpoint, request: ImageRequest, fresh: SamplerState) -> tuple[SamplerState, ImageLog]:
    """The state and the log in a checkpoint, whose digest was right; raises CorruptError unless they fit the request.

    `fresh` is the request's first state.
    """
    try:
        state = unpack_state(checkpoint.tensors, checkpoint.meta["sampler"])
        log = ImageLog.from_json(checkpoint.meta["log"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"the checkpoint's content is not a state ({type(error).__name__})") from error
    if fault := find_state_fault(state, request, fresh):
        raise CorruptError(f"the checkpoint's {fault}")
    if state.step != checkpoint.step or [report.index for report in log.reports] != list(range(1, state.step + 1)):
        raise CorruptError(f"the checkpoint's log is not of {checkpoint.step} steps")
    return state, log


def keep_latents(task: Task, course: Course) -> Iterator[Notice]:
    """Make the newest step's latents durable where the job keeps them; before its checkpoint, so that none are missed.

    A full disk is told once, and the image goes on without. Raises StorageError for all else.
    """
    if task.paths.latents is None:
        return
    state = course.begun.state
    try:
        write_latents(task.paths.latents, state.step, state.latents)
    except StorageError as error:
        if not is_disk_full(error):
            raise
        if not course.is_unkept_told:
            course.is_unkept_told = True
            yield Notice(f"{task.planned.stem}: latents of step {state.step} are not kept: {error}")


def save_checkpoint(task: Task, conditioning: Conditioning, course: Course) -> Iterator[Notice]:
    """Make the newest step durable.

    On a full disk the image goes on without: the last durable step stays what it was, and each later step tries again.
    Raises StorageError for all else.
    """
    begun = course.begun
    tensors, sampler = pack_state(begun.state)
    meta: dict[str, Any] = {
        "identity": task.identity(conditioning),
        "environment": dict(task.environment),
        "sampler": sampler,
        "log": begun.log.to_json(),
    }
    try:
        task.checkpoints.save(Checkpoint(begun.generation, begun.state.step, tensors, meta))
    except StorageError as error:
        if not is_disk_full(error):
            raise
        if not course.is_full_told:
            course.is_full_told = True
            course.warn(f"step {begun.state.step}: not saved, the disk was full")
            yield Notice(f"{task.planned.stem}: step {begun.state.step} is not saved, the image goes on: {error}")
        return
    course.begun = replace(begun, generation=begun.generation + 1)
    course.durable_step = begun.state.step
