"""Spectrum: which steps are computed, and the forecast of the others by Chebyshev regression and a Taylor half step.

The rule and its single precision are those of stable-diffusion.cpp's sampler-level Spectrum, whose parameters are the
default.
"""

from __future__ import annotations

import functools
import math
import operator

import numpy as np

from anima_batch.job.request import SpectrumPolicy
from anima_batch.sampling.state import Array, ForecastState, HistoryEntry

COORDINATE_STEPS = 50  # of coordinate "step": the domain [-1, 1] is 50 steps long whatever the image's number of steps
_MIN_ENTRIES = 2  # the Taylor half step needs a difference
_JITTER = 1e-4


def start_forecast(policy: SpectrumPolicy) -> ForecastState:
    """The forecast's memory before the first step."""
    return ForecastState(history=(), window=float(policy.window_size), cached=0)


def is_forecast(policy: SpectrumPolicy, sigmas: Array, step: int, state: ForecastState) -> bool:
    """Whether `step` (from 0) is forecast rather than computed.

    Computed: the warm-up, the tail, sigma over start_sigma, under 2 entries, and every floor(window)-th of the rest.
    """
    if step < policy.warmup_steps or step >= _tail_start(policy, len(sigmas) - 1):
        return False
    if sigmas[step] > np.float32(policy.start_sigma) or len(state.history) < _MIN_ENTRIES:
        return False
    return (state.cached + 1) % max(1, math.floor(state.window)) != 0


def _tail_start(policy: SpectrumPolicy, steps: int) -> int:
    """The first step (from 0) of the tail that is always computed; `steps` if there is none.

    By fraction it is truncated in single precision, and 0 means no tail.
    """
    if policy.tail_steps is not None:
        return steps - policy.tail_steps
    assert policy.stop_fraction is not None  # one of the two is set when the policy is validated
    return int(np.float32(policy.stop_fraction) * np.float32(steps)) or steps


def record_computed(policy: SpectrumPolicy, state: ForecastState, entry: HistoryEntry) -> ForecastState:
    """The memory after a computed step: the entry added, the oldest dropped, after the warm-up a wider window."""
    window = state.window
    if entry.step >= policy.warmup_steps:
        window = float(np.float32(window) + np.float32(policy.flex_window))
    return ForecastState((*state.history, entry)[-policy.history :], window, cached=0)


def record_forecast(state: ForecastState) -> ForecastState:
    """The memory after a forecast step: what was forecast is never kept."""
    return ForecastState(state.history, state.window, state.cached + 1)


def plan_forecasts(policy: SpectrumPolicy, sigmas: Array, steps: int) -> tuple[tuple[bool, ...], ForecastState]:
    """Whether each of the first steps is forecast, and the memory after them; its entries have no tensors."""
    state, planned = start_forecast(policy), []
    for step in range(steps):
        planned.append(is_forecast(policy, sigmas, step, state))
        state = record_forecast(state) if planned[-1] else record_computed(policy, state, HistoryEntry(step, ()))
    return tuple(planned), state


def forecast_tensors(policy: SpectrumPolicy, sigmas: Array, step: int, state: ForecastState) -> tuple[Array, ...]:
    """The tensors that computing `step` would have left, as the weighted sum of the history; float32, same shapes."""
    entries = state.history
    nodes = make_coordinates(policy, sigmas, [entry.step for entry in entries])
    weights = forecast_weights(policy, nodes, make_coordinates(policy, sigmas, [step])[0])
    streams = zip(*(entry.tensors for entry in entries), strict=True)
    return tuple(_weighted_sum(weights, tensors) for tensors in streams)


def _weighted_sum(weights: Array, tensors: tuple[Array, ...]) -> Array:
    """sum_k weights[k] tensors[k] with room for one product only: feature histories are large."""
    total: Array = tensors[0] * weights[0]
    product = np.empty_like(total)
    for weight, tensor in zip(weights[1:], tensors[1:], strict=True):
        np.multiply(tensor, weight, out=product)
        total += product
    return total


def make_coordinates(policy: SpectrumPolicy, sigmas: Array, steps: list[int]) -> Array:
    """The tau of each step (from 0), float32.

    Coordinate "step": i / 50 * 2 - 1; "sigma": from -1 at the first sigma linearly to 1 at the last positive one.
    """
    indices = np.array(steps, dtype=np.int64)
    if policy.coordinate == "step":
        position: Array = indices.astype(np.float32) / np.float32(COORDINATE_STEPS)
    else:
        position = (sigmas.take(indices) - sigmas[0]) / (sigmas[-2] - sigmas[0])
    coordinates: Array = position * np.float32(2) - np.float32(1)
    return coordinates


def forecast_weights(policy: SpectrumPolicy, nodes: Array, tau: np.float32) -> Array:
    """The linear weights of the forecast at tau on the entries at `nodes` (K,), oldest first; float32 (K,).

    blend * Chebyshev + (1 - blend) * Taylor. Chebyshev: X (X'X + ridge_lambda D)^-1 T(tau) with X_kj = T_j(node_k) and
    D the identity, or with a zero for T_0 when the constant is not penalised. Taylor: last + 0.5 (last - one before),
    whatever the distances.
    """
    basis = evaluate_chebyshev(nodes, policy.degree)  # (K, degree + 1)
    gram = np.zeros((policy.degree + 1, policy.degree + 1), dtype=np.float32)
    for row in basis:  # added up one by one: a matrix product's order differs between BLAS libraries
        gram += np.outer(row, row)
    penalised = np.arange(0 if policy.penalize_constant else 1, policy.degree + 1)
    gram[penalised, penalised] += np.float32(policy.ridge_lambda)
    solution = solve_positive_definite(gram, evaluate_chebyshev(np.array([tau], dtype=np.float32), policy.degree)[0])
    chebyshev = np.zeros(len(nodes), dtype=np.float32)
    for column, coefficient in zip(basis.T, solution, strict=True):
        chebyshev += column * coefficient
    taylor = np.zeros(len(nodes), dtype=np.float32)
    taylor[-2:] = -0.5, 1.5
    blend = np.float32(policy.blend)
    weights: Array = blend * chebyshev + (np.float32(1) - blend) * taylor
    return weights


def evaluate_chebyshev(nodes: Array, degree: int) -> Array:
    """T_0 ... T_degree at each node by the three-term recurrence, float32 (K, degree + 1)."""
    columns = [np.ones_like(nodes), nodes]
    while len(columns) <= degree:
        columns.append(np.float32(2) * nodes * columns[-1] - columns[-2])
    return np.stack(columns[: degree + 1], axis=1)


def solve_positive_definite(matrix: Array, right: Array) -> Array:
    """Solve matrix x = right by Cholesky in float32; where that fails, again with 1e-4 of its mean diagonal added.

    Raises ArithmeticError if that fails too.
    """
    size = len(matrix)
    lower = _cholesky(matrix)
    if lower is None:
        jitter = np.float32(_JITTER) * np.trace(matrix) / np.float32(size)
        lower = _cholesky(matrix + jitter * np.eye(size, dtype=np.float32))
    if lower is None:
        raise ArithmeticError(f"the forecast's normal equations are not positive definite: {matrix.tolist()}")
    x = right.astype(np.float32)
    for i in range(size):
        x[i] = (x[i] - _dot(lower[i, :i], x[:i])) / lower[i, i]
    for i in reversed(range(size)):
        x[i] = (x[i] - _dot(lower[i + 1 :, i], x[i + 1 :])) / lower[i, i]
    return x


def _cholesky(matrix: Array) -> Array | None:
    """The lower factor L with L L' = matrix, None if a pivot is not positive."""
    lower = np.zeros_like(matrix)
    for j in range(len(matrix)):
        pivot = matrix[j, j] - _dot(lower[j, :j], lower[j, :j])
        if not pivot > 0:
            return None
        lower[j, j] = np.sqrt(pivot)
        for i in range(j + 1, len(matrix)):
            lower[i, j] = (matrix[i, j] - _dot(lower[i, :j], lower[j, :j])) / lower[j, j]
    return lower


def _dot(left: Array, right: Array) -> np.float32:
    """The scalar product added up from the first element on, in float32 and without BLAS: the same on every machine."""
    products: Array = left * right
    return functools.reduce(operator.add, products, np.float32(0))
