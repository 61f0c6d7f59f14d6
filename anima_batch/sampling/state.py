"""Everything that a later step depends on, as values, and their exact form for a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class HistoryEntry:
    """What one computed step left for later forecasts; `step` counts from 0.

    tensors: the denoised latents (16, h, w), or one feature array (L, D) for each guidance stream; float32, read-only,
    and shared by all states that hold the entry.
    """

    step: int
    tensors: tuple[Array, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ForecastState:
    """The forecast's memory: entries, oldest first, the window, and the steps forecast since the last computed one."""

    history: tuple[HistoryEntry, ...]
    window: float
    cached: int


@dataclass(frozen=True, slots=True, eq=False)
class SolverState:
    """What a solver keeps of the step before: its velocity (ab2) or denoised latents (dpmpp_2m), and its sigma."""

    previous: Array | None = None
    previous_sigma: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SamplerState:
    """The state between two steps, complete: `step` steps are done.

    latents: float32 (16, h, w), read-only. guidance: v_cond - v_uncond of the last step that ran both, same shape.
    """

    step: int
    latents: Array
    forecast: ForecastState | None
    solver: SolverState
    guidance: Array | None


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a step did and what its latents look like; `index` counts from 1, `sigma` is the one the step starts at.

    passes: transformer passes (0 = forecast). abs_max: over the finite values, None if there are none.
    """

    index: int
    sigma: float
    computed: bool
    passes: int
    seconds: float
    nan: int
    inf: int
    abs_max: float | None
    latents_xxh3: str


def freeze(array: Array) -> Array:
    """The same array, made read-only: states share it."""
    array.flags.writeable = False
    return array


def pack_state(state: SamplerState) -> tuple[dict[str, Array], dict[str, Any]]:
    """The state's arrays by name (not copied) and the rest as a JSON object; `unpack_state` gives it back bit by bit.

    Names: latents, solver.previous, guidance, and history.<step>.<n> for the n-th tensor of the entry made at <step>.
    """
    tensors = {"latents": state.latents}
    if state.solver.previous is not None:
        tensors["solver.previous"] = state.solver.previous
    if state.guidance is not None:
        tensors["guidance"] = state.guidance
    meta: dict[str, Any] = {"step": state.step, "previous_sigma": state.solver.previous_sigma, "forecast": None}
    if state.forecast is not None:
        history = state.forecast.history
        tensors |= {f"history.{entry.step}.{n}": tensor for entry in history for n, tensor in enumerate(entry.tensors)}
        meta["forecast"] = {
            "window": state.forecast.window,
            "cached": state.forecast.cached,
            "history": [[entry.step, len(entry.tensors)] for entry in history],
        }
    return tensors, meta


def unpack_state(tensors: Mapping[str, npt.NDArray[Any]], meta: Mapping[str, Any]) -> SamplerState:
    """The state that `pack_state` took apart; arrays become read-only, and are copied only where they lie unaligned."""

    def take(name: str) -> Array:
        # A matrix product may round differently on memory that is not aligned, and a resumed run must not.
        return freeze(np.require(tensors[name], np.float32, ["C", "A"]).view())

    forecast = None
    if (packed := meta["forecast"]) is not None:
        history = tuple(
            HistoryEntry(step, tuple(take(f"history.{step}.{n}") for n in range(count)))
            for step, count in packed["history"]
        )
        forecast = ForecastState(history, packed["window"], packed["cached"])
    return SamplerState(
        step=meta["step"],
        latents=take("latents"),
        forecast=forecast,
        solver=SolverState(take("solver.previous") if "solver.previous" in tensors else None, meta["previous_sigma"]),
        guidance=take("guidance") if "guidance" in tensors else None,
    )
