"""How often an image is tried: within a run, and over runs that ended without a word."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

from anima_batch.environment import read_boot_id
from anima_batch.errors import StorageError
from anima_batch.files import is_disk_full
from anima_batch.runner.events import Notice
from anima_batch.runner.task import Course, Setting, StoppedError, Task
from anima_batch.store import begin_attempt, clear_attempts
from anima_batch.worker import WorkerFault

T = TypeVar("T")

STARTS = 3  # in a row without a new step, before an image is given up
TRIES = 2  # of a stage that a process answered with a failure: if a fresh one does no better, it is the image's
PROCESSES = 3  # that one stage may cost


class QuarantinedError(Exception):
    """The image was begun too often without a new step."""


def begin(task: Task, course: Course) -> Iterator[Notice]:
    """Count the start on disk; raises QuarantinedError when there were too many before it.

    The count is of starts that ended without a word: the whole run was killed, perhaps with the machine out of memory.
    A start that ended with a reboot, a new step and a stop that was asked for do not count.
    """
    if task.planned.status == "failed":  # `--retry-failed`
        clear_attempts(task.paths.checkpoint)
    yield from _count(task, course)
    if course.starts > STARTS:
        raise QuarantinedError(
            f"{STARTS} starts in a row ended without a new step after step {course.durable_step}, each time with the "
            "whole run: find out what ended it, then run again with --retry-failed"
        )


def end(task: Task) -> None:
    """Forget the starts: this one ends as it should."""
    with contextlib.suppress(StorageError):  # whatever is wrong with the disk is told elsewhere; at worst it counts
        clear_attempts(task.paths.checkpoint)
    with contextlib.suppress(OSError):  # it holds a checkpoint, or is gone with it
        task.paths.checkpoint.rmdir()


def insist(setting: Setting, task: Task, course: Course, stage: Callable[[], T]) -> Generator[Notice, None, T]:
    """What the stage gives, in a fresh process after each fault; raises the last WorkerFault when that is no use.

    Raises ModelSetError if a model file was changed meanwhile, which explains any fault, and StoppedError.
    """
    faults = 0
    while True:
        try:
            return stage()
        except WorkerFault as fault:
            faults += 1
            setting.worker.discard()
            setting.guard.check()
            if setting.stop:
                raise StoppedError from fault
            allowed = PROCESSES if fault.kind == "worker" else TRIES
            if faults >= allowed or (fault.kind == "worker" and course.starts >= STARTS):
                raise
            where = "" if course.step is None else f"step {course.step}: "
            course.warn(f"{where}{fault}: done again in a fresh process")
            yield Notice(f"{task.planned.stem}: {where}{fault}: again in a fresh process")
            yield from _count(task, course)


def _count(task: Task, course: Course) -> Iterator[Notice]:
    """Write down one more start; a disk that is too full for it is no reason to stop."""
    try:
        attempts = begin_attempt(task.paths.checkpoint, course.durable_step, read_boot_id())
    except StorageError as error:
        if not is_disk_full(error):
            raise
        yield Notice(f"{task.planned.stem}: this start is not counted: {error}")
        return
    if attempts.problem:
        yield Notice(f"{task.planned.stem}: {attempts.problem}")
    course.starts = attempts.count
