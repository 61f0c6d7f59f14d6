"""A backend that fails on purpose, round a real one: for the tests of what a sick runtime does to a batch."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from anima_batch.backends.base import Array, Backend, Session, TensorSpec
from anima_batch.errors import BackendError

Stage = Literal["encode", "step", "decode"]

_RAISED: Mapping[str, type[Exception]] = {
    "error_code": BackendError,
    "exception": RuntimeError,
    "out_of_memory": MemoryError,
}


class Fault(BaseModel):
    """What goes wrong, and when: the first time that a graph is run, or opened, in a stage of the image with that seed.

    `step` counts from 1; None is any. `times` of None is always; else the firings are counted in the file `ledger`,
    since the process may not survive them. `amount` is in seconds (slow), MB (leak, memory_limit) or a number (exit,
    signal).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal[
        "error_code", "none", "wrong_shape", "nan", "exception", "out_of_memory", "hang", "slow",
        "segfault", "signal", "exit", "leak", "memory_limit", "noise",
    ]  # fmt: skip
    at: Literal["run", "open"] = "run"
    stage: Stage = "step"
    seed: int | None = None
    step: int | None = None
    times: int | None = None
    ledger: Path | None = None
    amount: float = 0.0


def parse_faults(text: str) -> tuple[Fault, ...]:
    """The faults of a JSON list; raises pydantic's ValidationError."""
    return tuple(TypeAdapter(list[Fault]).validate_json(text))


class FaultPlan:
    """The faults, and which of them are due in the stage at hand."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = tuple(faults)
        self._due: list[Fault] = []
        self._lock = Lock()  # graphs are opened in one thread and run in others
        self.leaked: list[bytearray] = []

    def begin(self, stage: Stage, seed: int | None = None, step: int | None = None) -> None:
        """A stage begins: its faults become due."""
        self._due = [
            fault
            for fault in self._faults
            if fault.stage == stage and fault.seed in (None, seed) and fault.step in (None, step)
        ]

    def take(self, at: Literal["run", "open"]) -> Fault | None:
        """The next fault that is due there, counted before it strikes."""
        with self._lock:
            for fault in [fault for fault in self._due if fault.at == at]:
                self._due.remove(fault)
                if _has_turn(fault):
                    return fault
        return None


def _has_turn(fault: Fault) -> bool:
    if fault.times is None:
        return True
    assert fault.ledger is not None
    with fault.ledger.open("ab") as ledger:
        if ledger.tell() >= fault.times:
            return False
        ledger.write(b".")
    return True


class FaultyBackend:
    """The backend, whose sessions fail as planned."""

    def __init__(self, backend: Backend, plan: FaultPlan) -> None:
        self._backend = backend
        self._plan = plan
        self.name, self.suffix = backend.name, backend.suffix
        self.cores, self.watch = backend.cores, backend.watch

    def check(self, path: Path) -> tuple[TensorSpec, ...]:
        """The real backend's."""
        return self._backend.check(path)

    def open(self, path: Path, core: int = 0) -> FaultySession:
        """The real session, wrapped, unless a fault is due."""
        if fault := self._plan.take("open"):
            _strike(fault, path, self._plan)
        return FaultySession(path, self._backend.open(path, core), self._plan)

    def versions(self) -> dict[str, str | None]:
        """The real backend's."""
        return self._backend.versions()


class FaultySession:
    """A session that asks the plan before each run."""

    def __init__(self, path: Path, session: Session, plan: FaultPlan) -> None:
        self._path = path
        self._session = session
        self._plan = plan
        self.inputs = session.inputs

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """The real output, unless a fault is due."""
        fault = self._plan.take("run")
        if fault is None:
            return self._session.run(feeds)
        _strike(fault, self._path, self._plan)
        return _spoil(fault, self._session.run(feeds))

    def close(self) -> None:
        """Close the real session."""
        self._session.close()


def _strike(fault: Fault, path: Path, plan: FaultPlan) -> None:
    """What happens before the run, or instead of it."""
    if fault.kind in _RAISED:
        raise _RAISED[fault.kind](f"{path}: rknn_run failed with code -1\n(the second line of it)")
    match fault.kind:
        case "hang":
            time.sleep(1e6)
        case "slow":
            time.sleep(fault.amount)
        case "segfault":
            ctypes.string_at(0)
        case "signal":
            os.kill(os.getpid(), int(fault.amount))
        case "exit":
            os._exit(int(fault.amount))
        case "leak":
            plan.leaked.append(bytearray(os.urandom(1024) * int(fault.amount * 1024)))
        case "memory_limit":
            _limit_memory(int(fault.amount * 2**20), plan)
        case "noise":
            os.write(2, b"E RKNN: the driver has something to say\n" * 5000)


def _limit_memory(room_bytes: int, plan: FaultPlan) -> None:
    """Leave the process so much address space (0: no limit but the machine's), then use it up as a growing model would.

    Pages are written to, so that a limit of a control group acts too.
    """
    if room_bytes:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + room_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        plan.leaked.append(bytearray(b"." * (4 << 20)))


def _spoil(fault: Fault, output: Array) -> Array:
    """What is wrong with the run's output."""
    match fault.kind:
        case "none":
            return None  # type: ignore[return-value]  # as a runtime does that breaks its word
        case "wrong_shape":
            return output[..., :-1]
        case "nan":
            return np.full_like(output, np.nan)
    return output
