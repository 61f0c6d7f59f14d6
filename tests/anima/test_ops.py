"""The host's maths against ComfyUI's MiniTrainDIT and its rotary embedding, run on small random weights."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from anima_batch.anima import ops

GOLDEN = Path(__file__).parents[1] / "golden"
FULL_CAPTURES = ["a_dit_A_h12w20_s0.75_n9", "a_dit_A_h16w16_s0.75_n9", "a_dit_B_h12w20_s0.75_n9"]
TOLERANCE = 1e-4  # ten times what four public implementations differ by


def captured(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return dict(arrays)


def weights_of(name):
    return {
        key.removeprefix("net."): array for key, array in load_file(GOLDEN / f"{name[:7]}_weights.safetensors").items()
    }


def flat(array):
    return array.reshape(-1, array.shape[-1])


@pytest.mark.parametrize("name", FULL_CAPTURES)
def test_patchify_gives_comfyuis_features(name):
    golden = captured(name)
    patches = ops.patchify(golden["x"][0, :, 0])
    assert np.array_equal(patches, flat(golden["patchify.out"]))


@pytest.mark.parametrize("name", FULL_CAPTURES)
def test_the_timestep_embedding_is_comfyuis(name):
    golden = captured(name)
    sinusoid = ops.embed_timesteps(golden["sigma"], golden["t_embedder.0.out"].shape[-1])
    np.testing.assert_allclose(sinusoid, golden["t_embedder.0.out"][0], atol=1e-6)
    normed = ops.rms_norm(sinusoid, weights_of(name)["t_embedding_norm.weight"])
    np.testing.assert_allclose(normed, golden["t_embedding_norm.out"][0], atol=TOLERANCE)


@pytest.mark.parametrize("name", FULL_CAPTURES)
def test_the_rotary_table_is_comfyuis(name):
    golden = captured(name)
    table = golden["pos_embedder.out"]  # (L, d/2, 2, 2) = [[cos, -sin], [sin, cos]]
    _, _, _, height, width = golden["x"].shape
    cos, sin = ops.rotary_table(height // 2, width // 2, 2 * table.shape[1])
    np.testing.assert_allclose(cos, table[:, :, 0, 0], atol=1e-5)
    np.testing.assert_allclose(sin, table[:, :, 1, 0], atol=1e-5)


def test_the_rotary_table_of_the_real_head_dim_holds_for_large_grids():
    golden = captured("a_rope_hd128")
    rows, columns = golden["grid"]
    cos, sin = (table.reshape(rows, columns, 64) for table in ops.rotary_table(rows, columns, 128))
    np.testing.assert_allclose(cos[:, 0, 22:43], golden["cos_h"], atol=1e-5)
    np.testing.assert_allclose(sin[:, 0, 22:43], golden["sin_h"], atol=1e-5)
    np.testing.assert_allclose(cos[0, :, 43:], golden["cos_w"], atol=1e-5)
    np.testing.assert_allclose(sin[0, :, 43:], golden["sin_w"], atol=1e-5)
    assert np.array_equal(cos[..., :22], np.ones((rows, columns, 22), np.float32))


@pytest.mark.parametrize("name", FULL_CAPTURES)
def test_the_final_layers_norm_is_comfyuis(name):
    golden = captured(name)
    last = max(int(key.split(".")[1]) for key in golden if key.endswith(".out") and key.startswith("blocks."))
    hidden = flat(golden[f"blocks.{last}.out"])
    normed = ops.modulate(hidden, np.ones(hidden.shape[1], np.float32), np.zeros(hidden.shape[1], np.float32))
    np.testing.assert_allclose(normed, flat(golden["final_layer.layer_norm.out"]), atol=TOLERANCE)


@pytest.mark.parametrize("name", FULL_CAPTURES)
def test_unpatchify_puts_the_final_layers_features_where_comfyui_does(name):
    golden = captured(name)
    _, _, _, height, width = golden["x"].shape
    assert np.array_equal(
        ops.unpatchify(flat(golden["final_layer.linear.out"]), height, width), golden["pred"][0, :, 0]
    )


def test_modulate_leaves_its_input_alone():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    before = x.copy()
    ops.modulate(x, np.float32([1, 2, 3, 4]), np.float32([0, 1, 0, 1]))
    assert np.array_equal(x, before)


def test_silu_of_large_negative_values_is_zero_and_warns_of_nothing():
    assert ops.silu(np.float32([-80.0]))[0] == pytest.approx(0, abs=1e-30)
