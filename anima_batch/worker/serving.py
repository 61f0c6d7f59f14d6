"""The child's side: requests become calls of a workbench, and what it raises becomes a reply."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection

from anima_batch.backends.faults import FaultPlan, FaultyBackend, parse_faults
from anima_batch.errors import AnimaBatchError, BackendError, NonFiniteError
from anima_batch.sampling import SamplerState
from anima_batch.worker.messages import Answer, Call, Failure, FaultKind, Opening, StepTaken, settle, strip_history
from anima_batch.worker.workbench import Workbench


def serve(connection: Connection, faults: str) -> None:
    """Answer until the parent closes the connection; `faults` is a JSON list of faults to make on purpose, or empty."""
    service = _Service(faults)
    try:
        while True:
            call = connection.recv()
            connection.send(service.answer(call))
            del call  # a state may hold hundreds of megabytes
    except (EOFError, ConnectionError):
        service.close()


class _Service:
    """The workbench once it is open, and the state that the last step left: the parent sends it only to a new child."""

    def __init__(self, faults: str) -> None:
        self._plan = FaultPlan(parse_faults(faults)) if faults else None
        self._bench: Workbench | None = None
        self._state: SamplerState | None = None

    def answer(self, call: Call) -> Answer | Failure:
        """The reply to one request."""
        try:
            return Answer(self._call(call))
        except BackendError as error:
            fatal = error if call.stage == "open" else None
            kind: FaultKind = "non_finite" if isinstance(error, NonFiniteError) else "backend"
            return Failure(kind, _first_line(error), traceback.format_exc(), fatal)
        except AnimaBatchError as error:
            return Failure("unexpected", str(error), traceback.format_exc(), error)
        except MemoryError:
            return Failure("memory", "out of memory", traceback.format_exc())
        except Exception as error:  # the image fails for it, not the batch, and the parent keeps all that it says
            return Failure("unexpected", f"{type(error).__name__}: {_first_line(error)}", traceback.format_exc())

    def _call(self, call: Call) -> object:
        if call.stage == "open":
            self._bench = self._open(*call.arguments)
            return self._bench.opened
        assert self._bench is not None  # the parent opens first
        if call.stage == "step":
            return self._step(self._bench, *call.arguments)
        stages: dict[str, Callable[..., object]] = {
            "encode": self._bench.encode,
            "find_warnings": self._bench.find_warnings,
            "prepare": self._bench.prepare,
            "decode": self._bench.decode,
        }
        return stages[call.stage](*call.arguments)

    def _open(self, opening: Opening) -> Workbench:
        plan = self._plan
        return Workbench(opening, plan, None if plan is None else lambda backend: FaultyBackend(backend, plan))

    def _step(self, bench: Workbench, sent: SamplerState | None) -> StepTaken:
        state = self._state if sent is None else settle(sent)
        assert state is not None
        taken = bench.step(state)
        self._state = taken.state
        return replace(taken, state=strip_history(taken.state, state))

    def close(self) -> None:
        """Release what is open."""
        if self._bench is not None:
            self._bench.close()


def _first_line(error: Exception) -> str:
    """For the manifest; the log beside it has the rest."""
    return (str(error).splitlines() or [""])[0]
