from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sampling_model import state_bytes

from anima_batch.sampling import ForecastState, HistoryEntry, SamplerState, SolverState, pack_state, unpack_state

ARRAYS = hnp.arrays(np.float32, (16, 2, 3), elements=st.floats(width=32))  # with NaN, infinities and -0
FEATURES = hnp.arrays(np.float32, (6, 4), elements=st.floats(width=32))
HISTORY = st.lists(st.tuples(FEATURES, FEATURES), max_size=4).map(
    lambda pairs: tuple(HistoryEntry(3 * step, pair) for step, pair in enumerate(pairs))
)
STATES = st.builds(
    SamplerState,
    step=st.integers(0, 200),
    latents=ARRAYS,
    forecast=st.none() | st.builds(ForecastState, history=HISTORY, window=st.floats(1, 99), cached=st.integers(0, 99)),
    solver=st.just(SolverState()) | st.builds(SolverState, previous=ARRAYS, previous_sigma=st.floats(0, 1)),
    guidance=st.none() | ARRAYS,
)


@given(state=STATES)
def test_a_state_survives_packing_bit_by_bit(state):
    """Through JSON text and raw bytes, as a file would keep it."""
    tensors, meta = pack_state(state)
    raw = {name: np.frombuffer(tensor.tobytes(), np.float32).reshape(tensor.shape) for name, tensor in tensors.items()}
    unpacked = unpack_state(raw, json.loads(json.dumps(meta)))
    assert state_bytes(unpacked) == state_bytes(state)
    assert unpacked.solver.previous_sigma == state.solver.previous_sigma


def test_history_is_packed_under_step_and_number():
    entry = HistoryEntry(7, (np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)))
    state = SamplerState(8, np.zeros((16, 1, 1), np.float32), ForecastState((entry,), 2.5, 1), SolverState(), None)
    tensors, meta = pack_state(state)
    assert set(tensors) == {"latents", "history.7.0", "history.7.1"}
    assert tensors["history.7.1"] is entry.tensors[1]
    assert meta["forecast"] == {"window": 2.5, "cached": 1, "history": [[7, 2]]}


def test_unpacked_arrays_are_aligned_and_read_only():
    data = np.frombuffer(b"\0" + np.arange(16, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32)
    latents = data.reshape(16, 1, 1)
    assert not latents.flags.aligned
    state = unpack_state({"latents": latents}, {"step": 1, "previous_sigma": None, "forecast": None})
    assert state.latents.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        state.latents[0] = 1


def test_unpacking_leaves_the_callers_arrays_writable():
    latents = np.zeros((16, 1, 1), np.float32)
    unpack_state({"latents": latents}, {"step": 0, "previous_sigma": None, "forecast": None})
    assert latents.flags.writeable
