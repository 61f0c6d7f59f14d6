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


def plain_advance(residual, gate, output, one_plus_scale, shift):
    """The same over whole arrays, formula by formula."""
    residual = residual + gate * output.astype(np.float32)
    centred = residual - residual.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return residual, centred * (one_plus_scale / np.sqrt(variance + np.float32(ops.EPS))) + shift


def made_arrays(rows, width, dtype=np.float32):
    rng = np.random.default_rng(7)
    residual, output = rng.standard_normal((2, rows, width), np.float32)
    gate, one_plus_scale, shift = rng.standard_normal((3, width), np.float32)
    return residual * 3, gate, output.astype(dtype), one_plus_scale, shift


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (64, 192), (1000, 2048), (1023, 40), (3, 50_000)])
def test_a_step_on_by_blocks_has_the_bits_of_the_formulas_over_whole_arrays(rows, width, dtype):
    residual, gate, output, one_plus_scale, shift = made_arrays(rows, width, dtype)
    wanted, wanted_z = plain_advance(residual, gate, output, one_plus_scale, shift)
    z = np.empty_like(residual)
    for block_bytes in (1, 12_345, 1 << 18, 1 << 30):
        stream = residual.copy()
        ops.advance(stream, ops.Gated(gate, output), ops.Norm(one_plus_scale, shift, z), block_bytes=block_bytes)
        assert stream.tobytes() == wanted.tobytes()
        assert z.tobytes() == wanted_z.tobytes()
    assert ops.modulate(stream, one_plus_scale, shift).tobytes() == z.tobytes()


def test_a_float16_output_is_the_float32_one_rounded_once_and_overflow_is_infinite_without_a_warning():
    residual, gate, output, one_plus_scale, shift = made_arrays(100, 192)
    shift[3], shift[4] = 1e5, 65519.99
    wide, narrow = np.empty_like(residual), np.empty(residual.shape, np.float16)
    other = residual.copy()
    ops.advance(residual, ops.Gated(gate, output), ops.Norm(one_plus_scale, shift, wide))
    ops.advance(other, ops.Gated(gate, output), ops.Norm(one_plus_scale, shift, narrow))
    assert np.isinf(narrow[:, 3]).all()
    with np.errstate(over="ignore"):
        assert narrow.tobytes() == wide.astype(np.float16).tobytes()


def test_a_step_on_without_a_norm_or_without_an_addition_does_only_the_other():
    residual, gate, output, one_plus_scale, shift = made_arrays(100, 192)
    before = residual.copy()
    ops.advance(residual, None, ops.Norm(one_plus_scale, shift, np.empty_like(residual)))
    assert np.array_equal(residual, before)
    ops.advance(residual, ops.Gated(gate, output), None)
    assert np.array_equal(residual, before + gate * output)
