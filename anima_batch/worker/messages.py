"""What parent and child say to each other; the pair of sockets between them is theirs alone, so pickles are safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from anima_batch.backends.base import Timings
from anima_batch.errors import AnimaBatchError
from anima_batch.job import RunSpec
from anima_batch.model_set import ModelSet
from anima_batch.sampling import SamplerState, StepReport
from anima_batch.sampling.state import Array, HistoryEntry, freeze

Stage = Literal["open", "encode", "find_warnings", "prepare", "step", "decode"]
FaultKind = Literal["worker", "backend", "memory", "unexpected", "non_finite"]


@dataclass(frozen=True)
class Opening:
    """What the model is made of: its set, "auto", "onnx" or "rknn", and how it is run."""

    model_set: ModelSet
    backend: str
    run: RunSpec


@dataclass(frozen=True)
class Opened:
    """The backend that was chosen, and the versions of what computes in the child."""

    backend: str
    versions: dict[str, str | None]


@dataclass(frozen=True)
class StepTaken:
    """A step's state, its report, the seconds it spent in each phase, and why staging fell back if it did."""

    state: SamplerState
    report: StepReport
    phases: Timings
    fallback: str | None


@dataclass(frozen=True)
class Call:
    """One request: a stage and its arguments."""

    stage: Stage
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    """What a stage gave."""

    value: Any


@dataclass(frozen=True)
class Failure:
    """A stage raised: `error` is set where the run must stop for it; else `kind` and the one line `message` tell."""

    kind: FaultKind
    message: str
    traceback: str
    error: AnimaBatchError | None = None


class WorkerFault(Exception):  # noqa: N818 - it is no error of the user's, and may be cured by a fresh process
    """A stage failed. `kind`: "worker" (the process died or hung), "backend", "memory", "non_finite", "unexpected".

    `details` is what more there is to read: a traceback, the last output of the process.
    """

    def __init__(self, kind: FaultKind, message: str, details: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details


def strip_history(state: SamplerState, before: SamplerState) -> SamplerState:
    """The state without the tensors of history entries that `before` has too: the other side knows them."""
    if state.forecast is None or before.forecast is None:
        return state
    known = {entry.step for entry in before.forecast.history}
    history = tuple(HistoryEntry(entry.step, ()) if entry.step in known else entry for entry in state.forecast.history)
    return replace(state, forecast=replace(state.forecast, history=history))


def restore_history(state: SamplerState, before: SamplerState) -> SamplerState:
    """The whole state again: what `strip_history` left out comes from `before`."""
    if state.forecast is None or before.forecast is None:
        return state
    known = {entry.step: entry for entry in before.forecast.history}
    history = tuple(known.get(entry.step, entry) for entry in state.forecast.history)
    return replace(state, forecast=replace(state.forecast, history=history))


def settle(state: SamplerState) -> SamplerState:
    """The state as it came over the socket, its arrays read-only and aligned again, so that it gives the same bits."""
    forecast, previous = state.forecast, state.solver.previous
    if forecast is not None:
        history = tuple(HistoryEntry(entry.step, _settle_all(entry.tensors)) for entry in forecast.history)
        forecast = replace(forecast, history=history)
    return SamplerState(
        step=state.step,
        latents=settle_array(state.latents),
        forecast=forecast,
        solver=replace(state.solver, previous=None if previous is None else settle_array(previous)),
        guidance=None if state.guidance is None else settle_array(state.guidance),
    )


def settle_array(array: Array) -> Array:
    """As `settle`, for one float32 array."""
    return freeze(np.require(array, np.float32, ["C", "A"]))


def _settle_all(arrays: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(settle_array(array) for array in arrays)
