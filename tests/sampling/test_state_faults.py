"""States that were read from a file: each that sampling gives fits its request, and one that was changed does not."""

from dataclasses import replace

import numpy as np
import pytest
from sampling_model import POLICIES, make_request

from anima_batch.sampling import HistoryEntry, find_state_fault, initial_state, sample


class PatchModel:
    """A model whose features have the real number of tokens: one for 16 x 16 pixels."""

    def features(self, latents, step, streams):
        return [np.tanh(latents.reshape(-1, 64) + np.float32(0.1 * (step + len(stream)))) for stream in streams]

    def velocity(self, features, step):
        return np.cos(features).reshape(16, 2, 4)


def make_states(policy, sampler="euler"):
    request = make_request(policy=POLICIES[policy], sampler=sampler)
    fresh = initial_state(request)
    return request, fresh, [state for state, _ in sample(request, PatchModel(), fresh)]


CASES = [(policy, "euler") for policy in POLICIES] + [("full", "ab2"), ("guidance_reuse", "dpmpp_2m")]


@pytest.mark.parametrize(("policy", "sampler"), CASES)
def test_every_state_of_a_request_fits_it(policy, sampler):
    request, fresh, states = make_states(policy, sampler)
    assert [find_state_fault(state, request, fresh) for state in states] == [None] * len(states)


@pytest.mark.parametrize("policy", ["denoised", "features", "guidance_reuse"])
def test_a_state_of_another_policy_does_not_fit(policy):
    request, fresh, _ = make_states("full")
    _, _, states = make_states(policy)
    assert all(find_state_fault(state, request, fresh) for state in states)


def test_what_was_changed_is_named():
    request, fresh, states = make_states("features")
    state = states[6]
    history = state.forecast.history
    half = HistoryEntry(history[-1].step, history[0].tensors[:1])
    nan = np.full_like(state.latents, np.nan)

    def with_history(*entries):
        return replace(state, forecast=replace(state.forecast, history=entries))

    for changed, fault in (
        (replace(state, step=0), "step must be 1-12, got 0"),
        (replace(state, step=13), "step must be 1-12, got 13"),
        (replace(state, step=True), "step must be 1-12, got True"),
        (replace(state, latents=state.latents[:, :1]), "latents must have shape (16, 2, 4), got (16, 1, 4)"),
        (replace(state, latents=nan), "latents must be finite"),
        (replace(state, guidance=state.latents), "guidance must have shape None, got (16, 2, 4)"),
        (replace(state, solver=replace(state.solver, previous=nan)), "solver.previous must have shape None"),
        (replace(state, solver=replace(state.solver, previous_sigma=0.5)), "previous_sigma must be None, got 0.5"),
        (replace(state, forecast=None), "history must be of the steps [0, 1, 2, 3"),
        (with_history(*history[:-1]), "history must be of the steps [0, 1, 2, 3"),
        (with_history(*history[:-1], HistoryEntry(-1, history[-1].tensors)), "history must be of the steps"),
        (with_history(*history[:-1], half), "must have 2 tensors, got 1"),
        (with_history(HistoryEntry(0, (nan, nan)), *history[1:]), "history.0.0 must have shape (2, 4), got (16, 2, 4)"),
        (replace(state, forecast=replace(state.forecast, window=9.0)), "window and cached must be "),
        (replace(state, forecast=replace(state.forecast, cached=9)), "window and cached must be "),
    ):  # fmt: skip
        assert fault in (find_state_fault(changed, request, fresh) or ""), fault
