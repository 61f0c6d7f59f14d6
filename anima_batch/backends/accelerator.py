"""The queues in front of an accelerator: one a core, worked off in their order while the host does something else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from anima_batch.backends.base import Array

Key = TypeVar("Key")


class CoreQueues(Generic[Key]):
    """Jobs go to a core and come back with their keys as they end. Leaving the context drops what has not begun.

    With `beside` each core has a thread, else a job is done at once by whoever submits it. Cores need no other order
    than that of submission, and the host has one thread: it submits and takes.
    """

    def __init__(self, cores: int, *, beside: bool) -> None:
        self._ended: SimpleQueue[tuple[Key, Future[Array]]] = SimpleQueue()
        self._threads = [ThreadPoolExecutor(1, f"core-{core}") for core in range(cores if beside else 0)]

    def __enter__(self) -> CoreQueues[Key]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def submit(self, core: int, key: Key, job: Callable[[], Array]) -> None:
        """Put a job at the end of the core's queue; without threads, what it raises is raised here."""
        if not self._threads:
            done: Future[Array] = Future()
            done.set_result(job())
            self._ended.put((key, done))
            return
        future = self._threads[core].submit(job)
        future.add_done_callback(lambda ended: self._ended.put((key, ended)))

    def take(self) -> tuple[Key, Array]:
        """The next job that ended, waited for; raises what it raised."""
        key, future = self._ended.get()
        return key, future.result()
