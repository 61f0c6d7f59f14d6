"""The ONNX graphs of Qwen3 and the adapter, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from anima_batch.anima.text import causal_mask, rotary_1d
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.graph import Array
from anima_batch.convert.text import Built, build_adapter, build_qwen

GOLDEN = Path(__file__).parents[1] / "golden"
HEAD_DIM = 16
TOLERANCE = 2e-5  # ten times the spread of the public implementations among themselves, in float32


def read_weights(name: str, prefix: str) -> dict[str, Array]:
    return {key.removeprefix(prefix): array for key, array in load_file(GOLDEN / f"{name}_weights.safetensors").items()}


@pytest.fixture(scope="module")
def qwen_weights() -> dict[str, Array]:
    return read_weights("b_qwen3", "model.")


@pytest.fixture(scope="module")
def adapter_weights() -> dict[str, Array]:
    return read_weights("b_llm_adapter", "net.llm_adapter.")


@pytest.fixture
def run_graph(tmp_path: Path) -> Callable[[Built, Mapping[str, Array]], Array]:
    def run(built: Built, feeds: Mapping[str, Array]) -> Array:
        path = tmp_path / "graph.onnx"
        path.write_bytes(built[0])
        with closing(OnnxBackend(threads=1).open(path)) as session:
            return session.run(feeds)

    return run


def qwen_feeds(x: Array) -> dict[str, Array]:
    cos, sin = rotary_1d(x.shape[1], HEAD_DIM, 1e6)
    return {"x": x, "cos": cos, "sin": sin, "mask": causal_mask(x.shape[1])}


def adapter_feeds(x: Array, states: Array) -> dict[str, Array]:
    cos, sin = rotary_1d(x.shape[1], HEAD_DIM, 1e4)
    states_cos, states_sin = rotary_1d(states.shape[1], HEAD_DIM, 1e4)
    return {"x": x, "cos": cos, "sin": sin, "states": states, "states_cos": states_cos, "states_sin": states_sin}


@pytest.mark.parametrize("case", ["prompt", "weighted", "empty"])
def test_qwen_gives_the_reference_states(case, qwen_weights, run_graph):
    """Reference: transformers Qwen3Model (eager)."""
    golden = np.load(GOLDEN / f"b_text_{case}.npz")
    states = run_graph(build_qwen(qwen_weights), qwen_feeds(golden["qwen.hidden_states.0"]))
    np.testing.assert_allclose(states, golden["qwen.last_hidden_state"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", ["prompt", "weighted", "empty"])
def test_the_adapter_gives_the_reference_rows(case, adapter_weights, run_graph):
    """Reference: ComfyUI LLMAdapter, before weights and padding."""
    golden = np.load(GOLDEN / f"b_text_{case}.npz")
    feeds = adapter_feeds(golden["adapter.embed"], golden["qwen.last_hidden_state"])
    rows = run_graph(build_adapter(adapter_weights), feeds)
    np.testing.assert_allclose(rows, golden["adapter.out"], rtol=0, atol=TOLERANCE)


def test_zero_states_give_the_rows_of_masked_states(adapter_weights, run_graph):
    """Reference: diffusers AnimaTextConditioner with all source positions masked."""
    golden = np.load(GOLDEN / "b_text_empty_diffusers.npz")
    x = adapter_weights["embed.weight"][golden["t5_ids"]][None]
    rows = run_graph(build_adapter(adapter_weights), adapter_feeds(x, np.zeros((1, 1, 32), np.float32)))
    np.testing.assert_allclose(rows, golden["adapter.out"], rtol=0, atol=TOLERANCE)


def test_any_number_of_zero_states_adds_nothing(adapter_weights, run_graph):
    x = adapter_weights["embed.weight"][[5, 9, 1]][None]
    built = build_adapter(adapter_weights)
    one, many = (run_graph(built, adapter_feeds(x, np.zeros((1, n, 32), np.float32))) for n in (1, 7))
    np.testing.assert_array_equal(one, many)


def test_a_later_token_does_not_change_the_states_before_it(qwen_weights, run_graph):
    x = np.load(GOLDEN / "b_text_prompt.npz")["qwen.hidden_states.0"]
    changed = x.copy()
    changed[:, -1] *= -3
    built = build_qwen(qwen_weights)
    before, after = run_graph(built, qwen_feeds(x)), run_graph(built, qwen_feeds(changed))
    np.testing.assert_array_equal(before[:, :-1], after[:, :-1])
    assert np.abs(before[:, -1] - after[:, -1]).max() > 0.1


def test_shared_kv_heads_equal_written_out_ones(qwen_weights, run_graph):
    written_out = dict(qwen_weights)
    for name in (key for key in qwen_weights if key.endswith(("k_proj.weight", "v_proj.weight"))):
        heads = qwen_weights[name].reshape(2, HEAD_DIM, -1)
        written_out[name] = np.repeat(heads, 2, axis=0).reshape(4 * HEAD_DIM, -1)
    feeds = qwen_feeds(np.load(GOLDEN / "b_text_prompt.npz")["qwen.hidden_states.0"])
    shared, own = run_graph(build_qwen(qwen_weights), feeds), run_graph(build_qwen(written_out), feeds)
    np.testing.assert_allclose(shared, own, rtol=0, atol=1e-6)  # the same sums, perhaps in another order


def test_float16_weights_stay_float16_in_the_file(qwen_weights, adapter_weights):
    for build, weights in ((build_qwen, qwen_weights), (build_adapter, adapter_weights)):
        half = {name: array.astype(np.float16) for name, array in weights.items()}
        model = onnx.load_from_string(build(half)[0])
        kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer if "weight" in tensor.name}
        assert set(kinds.values()) == {onnx.TensorProto.FLOAT16}
        assert len(build(half)[0]) < 0.75 * len(build(weights)[0])


def test_embeddings_are_not_in_the_graphs(qwen_weights, adapter_weights):
    for build, weights in ((build_qwen, qwen_weights), (build_adapter, adapter_weights)):
        names = [tensor.name for tensor in onnx.load_from_string(build(weights)[0]).graph.initializer]
        assert not [name for name in names if "embed" in name]


def test_equal_weights_give_equal_bytes(qwen_weights, adapter_weights):
    for build, weights in ((build_qwen, qwen_weights), (build_adapter, adapter_weights)):
        assert build(weights)[0] == build(dict(reversed(weights.items())))[0]
