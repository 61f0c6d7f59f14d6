"""The boards as Dask has them: who is there, what they are given, what they say. Nothing about images."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from distributed import CancelledError, Client, Future, KilledWorker, fire_and_forget
from distributed import TimeoutError as DaskTimeoutError
from distributed.client import ClosedClientError

from anima_batch.fleet.board import TOPIC, examine_board, forget_images
from anima_batch.fleet.messages import NPU, Assignment, Examined, Need, Refused, Result, Told

RESULT_SECONDS = 60.0  # for bringing a result that Dask says is there


class SchedulerLostError(Exception):
    """The scheduler has gone, and all it knew."""


@dataclass(frozen=True)
class Answered:
    """A board was examined."""

    address: str
    answer: Examined | Refused


@dataclass(frozen=True)
class Ended:
    """A task ended with a result, or with None: cancelled, or with a problem; `is_lost`: its boards were."""

    key: str
    result: Result | None
    problem: str = ""
    is_lost: bool = False


Word: TypeAlias = Told | Answered | Ended


class Crew:
    """Tasks on the boards of a scheduler; use it from one thread."""

    def __init__(self, client: Client, need: Need, make: Callable[[Assignment], Result]) -> None:
        self._client = client
        self._need = need
        self._make = make
        self._numbers = itertools.count(1)
        self._inbox: queue.SimpleQueue[Told | str] = queue.SimpleQueue()  # a str is the key of a future that is done
        self._futures: dict[str, Future[Any]] = {}
        self._examinations: dict[str, str] = {}  # key -> address
        client.subscribe_topic(TOPIC, self._hear)

    def find_boards(self) -> dict[str, str]:
        """Name by address of the boards that are there. Raises SchedulerLostError."""
        with self._scheduler():
            workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return {address: str(entry["name"]) for address, entry in workers.items() if NPU in entry.get("resources", {})}

    def examine(self, address: str) -> None:
        """Ask a board what it can do; Answered comes when it has time for it."""
        key = self._submit(f"anima-examine-{self._need.run_id}", examine_board, self._need, [address])
        self._examinations[key] = address

    def give(self, assignment: Assignment, addresses: list[str]) -> str:
        """Give an image to one of the boards; the task's key."""
        key = f"anima-{assignment.planned.request_id[:12]}-{self._need.run_id}"
        return self._submit(key, self._make, assignment, addresses)

    def cancel(self, key: str) -> None:
        """Nobody waits for a task any more: its board stops after the step at hand."""
        self._examinations.pop(key, None)
        if future := self._futures.pop(key, None):
            with self._scheduler():
                future.cancel()

    def forget(self, address: str, images: list[str]) -> None:
        """Let a board remove the checkpoints that it has of images, by their short ids."""
        with self._scheduler():
            submit = self._client.submit
            fire_and_forget(submit(forget_images, images, workers=[address], pure=False, allow_other_workers=False))

    def listen(self, seconds: float) -> Iterator[Word]:
        """What was said, waiting for the first word. Raises SchedulerLostError."""
        try:
            words = [self._inbox.get(timeout=seconds)]
        except queue.Empty:
            self._check()
            return
        while not self._inbox.empty():
            words.append(self._inbox.get())
        for word in words:
            if isinstance(word, Told):
                yield word
            elif word in self._futures:
                yield from self._collect(word)

    def _submit(self, name: str, function: Callable[..., Any], argument: object, addresses: list[str]) -> str:
        key = f"{name}-{next(self._numbers)}"
        with self._scheduler():
            future = self._client.submit(
                function,
                argument,
                key=key,
                workers=addresses,
                resources={NPU: 1},
                pure=False,
                allow_other_workers=False,
            )
        self._futures[key] = future
        future.add_done_callback(lambda _: self._inbox.put(key))
        return key

    def _collect(self, key: str) -> Iterator[Word]:
        """What a task that is done gave; one whose result was lost with its board is done again by Dask."""
        future, value, problem, is_lost = self._futures[key], None, "", False
        try:
            value = future.result(timeout=RESULT_SECONDS)
        except DaskTimeoutError:
            future.add_done_callback(lambda _: self._inbox.put(key))
            return
        except KilledWorker as error:
            problem, is_lost = f"{error.allowed_failures + 1} boards were lost while they had it", True
        except CancelledError:
            self._check()
            if key in self._examinations:  # the connection was lost for a moment, and all questions with it
                del self._futures[key]
                self.examine(self._examinations.pop(key))
                return
        except Exception as error:  # whatever was raised on the board
            problem = _describe(error)
        del self._futures[key]
        if key in self._examinations:
            address = self._examinations.pop(key)
            yield Answered(address, value or Refused(address, (problem,)))
        else:
            yield Ended(key, value, problem, is_lost)

    def _hear(self, event: tuple[float, Any]) -> None:
        """In Dask's thread."""
        told = pickle.loads(event[1])  # noqa: S301 - from a board, which runs what we send it as we run what it sends
        if isinstance(told, Told) and told.run_id == self._need.run_id:
            self._inbox.put(told)

    @contextlib.contextmanager
    def _scheduler(self) -> Iterator[None]:
        """The block speaks to it; raises SchedulerLostError where nobody is there."""
        self._check()
        try:
            yield
        except (OSError, DaskTimeoutError, RuntimeError, ClosedClientError) as error:
            raise SchedulerLostError from error

    def _check(self) -> None:
        if self._client.status != "running":
            raise SchedulerLostError


def _describe(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}".replace("\n", " ")
    if "deserialization of the task graph" in text:  # the scheduler reads what it hands on
        return "the scheduler runs without anima-batch, or with another version: start it from the same environment"
    return text
