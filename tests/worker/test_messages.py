"""What is left out of a reply because the other side has it."""

import numpy as np

from anima_batch.sampling import SamplerState
from anima_batch.sampling.state import ForecastState, HistoryEntry, SolverState
from anima_batch.worker.messages import restore_history, settle, strip_history


def make_state(step, history_steps):
    entries = tuple(HistoryEntry(n, (np.full((4, 2), n, np.float32),)) for n in history_steps)
    return SamplerState(
        step=step,
        latents=np.full((16, 2, 2), step, np.float32),
        forecast=ForecastState(entries, 2.5, 1),
        solver=SolverState(np.full((16, 2, 2), -step, np.float32), 0.5),
        guidance=np.ones((16, 2, 2), np.float32),
    )


def test_a_reply_brings_only_the_history_that_is_new():
    before, after = make_state(3, [0, 1, 2]), make_state(4, [1, 2, 3])
    stripped = strip_history(after, before)
    assert [len(entry.tensors) for entry in stripped.forecast.history] == [0, 0, 1]
    restored = restore_history(stripped, before)
    assert [entry.step for entry in restored.forecast.history] == [1, 2, 3]
    assert restored.forecast.history[0] is before.forecast.history[1]
    assert restored.forecast.history[2] is after.forecast.history[2]
    assert (restored.forecast.window, restored.forecast.cached) == (2.5, 1)


def test_a_state_without_a_forecast_passes_as_it_is():
    state = SamplerState(1, np.zeros((16, 2, 2), np.float32), None, SolverState(), None)
    assert strip_history(state, state) is state
    assert restore_history(state, state) is state


def test_what_came_over_the_socket_is_read_only_and_aligned():
    state = make_state(1, [0])
    shifted = np.frombuffer(b"." + state.latents.tobytes(), np.uint8)[1:].view(np.float32).reshape(16, 2, 2)
    assert not shifted.flags.aligned
    settled = settle(SamplerState(1, shifted, state.forecast, state.solver, state.guidance))
    arrays = [settled.latents, settled.solver.previous, settled.guidance, *settled.forecast.history[0].tensors]
    assert all(array.flags.aligned and not array.flags.writeable for array in arrays)
    assert settled.latents.tobytes() == state.latents.tobytes()
