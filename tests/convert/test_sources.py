"""Official files as they come: prefixes, dtypes, damage."""

import ml_dtypes
import numpy as np
import pytest
from golden_set import golden_transformer, write_safetensors
from safetensors.numpy import load_file, save_file

from anima_batch.convert.sources import (
    QWEN,
    TRANSFORMER,
    VAE,
    Tensors,
    find_faults,
    leave_out,
    open_source,
    read_header,
    select,
)
from anima_batch.errors import UsageError

ANCHOR = "blocks.0.mlp.layer1.weight"


def write(path, *names, prefix="net.", **arrays):
    save_file({f"{prefix}{name}": np.ones((2, 2), np.float32) for name in (ANCHOR, *names)} | arrays, path)
    return path


def read_one(path, array, rule="auto"):
    save_file({f"net.{ANCHOR}": array}, path)
    return Tensors(open_source(path, TRANSFORMER), rule)[ANCHOR]


@pytest.mark.parametrize("prefix", ["net.", "model.diffusion_model.", "model.diffusion_model.net.", ""])
def test_a_transformer_is_found_under_each_prefix(tmp_path, prefix):
    source = open_source(write(tmp_path / "t.safetensors", "norm.weight", prefix=prefix), TRANSFORMER)
    assert (source.prefix, sorted(source.entries)) == (prefix, [ANCHOR, "norm.weight"])


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_text_encoder_is_found_under_each_prefix(tmp_path, prefix):
    path = tmp_path / "q.safetensors"
    save_file({f"{prefix}embed_tokens.weight": np.ones((2, 2), np.float32)}, path)
    assert list(open_source(path, QWEN).entries) == ["embed_tokens.weight"]


def test_buffers_and_the_encoder_are_left_out(tmp_path):
    buffers = ("pos_embedder.seq", "accum_image_sample_counter", "_extra_state", "blocks.0.self_attn._extra_state")
    assert list(open_source(write(tmp_path / "t.safetensors", *buffers), TRANSFORMER).entries) == [ANCHOR]
    path = tmp_path / "v.safetensors"
    save_file({name: np.ones(1, np.float32) for name in ("decoder.conv1.weight", "encoder.x", "conv1.bias")}, path)
    assert list(open_source(path, VAE).entries) == ["decoder.conv1.weight"]


def test_a_file_of_another_kind_is_refused_with_what_it_holds(tmp_path):
    path = tmp_path / "unet.safetensors"
    save_file({"unet.weight": np.ones(1, np.float32)}, path)
    with pytest.raises(UsageError, match=rf"unet\.safetensors: not an Anima transformer: .*{ANCHOR}.*unet\.weight"):
        open_source(path, TRANSFORMER)


def test_a_tensor_outside_the_prefix_is_unknown_even_with_an_expected_name(tmp_path):
    stray = {ANCHOR: np.ones((2, 2), np.float32)}
    source = open_source(write(tmp_path / "t.safetensors", **stray), TRANSFORMER)
    assert find_faults(source, {ANCHOR: (2, 2)}) == [f"{source.path}: 1 unknown: {ANCHOR}"]


def test_missing_unknown_and_misshapen_tensors_are_listed_by_their_full_names(tmp_path):
    source = open_source(write(tmp_path / "t.safetensors", "b", "c"), TRANSFORMER)
    path = source.path
    assert find_faults(source, {ANCHOR: (2, 2), "b": (2, 2), "c": (2, 2)}) == []
    assert find_faults(source, {ANCHOR: (2, 2), "b": (2, 2), "d": (1,)}) == [
        f"{path}: 1 missing: net.d",
        f"{path}: 1 unknown: net.c",
    ]
    assert find_faults(source, {ANCHOR: (2, 2), "b": (3, 2), "c": (2, 2)}) == [
        f"{path}: 1 misshapen: net.b (must be [3, 2], got [2, 2])"
    ]


def test_a_long_list_is_cut_and_counted(tmp_path):
    source = open_source(write(tmp_path / "t.safetensors"), TRANSFORMER)
    (fault,) = find_faults(source, {ANCHOR: (2, 2), **{f"b{number:02d}": (1,) for number in range(23)}})
    assert fault.startswith(f"{source.path}: 23 missing: net.b00, net.b01")
    assert fault.endswith("net.b19 and 3 more")


def test_an_empty_tensor_is_misshapen(tmp_path):
    path = tmp_path / "t.safetensors"
    write_safetensors(path, {f"net.{ANCHOR}": ("F32", [0, 2], b"")})
    assert "misshapen" in find_faults(open_source(path, TRANSFORMER), {ANCHOR: (0, 2)})[0]


def test_values_equal_those_of_the_safetensors_library(tmp_path):
    expected = golden_transformer()
    save_file(expected, tmp_path / "t.safetensors")
    tensors = Tensors(open_source(tmp_path / "t.safetensors", TRANSFORMER), "auto")
    assert len(tensors) == len(expected)
    for name, array in tensors.items():
        np.testing.assert_array_equal(array, expected[f"net.{name}"])


@pytest.mark.parametrize(
    ("dtype", "rule", "stored"),
    [
        (np.float32, "auto", np.float32),
        (np.float16, "auto", np.float16),
        (ml_dtypes.bfloat16, "auto", np.float16),
        (np.float32, "fp16", np.float16),
        (np.float16, "fp32", np.float32),
        (ml_dtypes.bfloat16, "fp32", np.float32),
    ],
)
def test_weights_are_stored_as_the_rule_says(tmp_path, dtype, rule, stored):
    array = np.array([[1.5, -2.25], [0.0, 384.0]], dtype)  # exact in all three formats
    got = read_one(tmp_path / "t.safetensors", array, rule)
    assert got.dtype == stored
    np.testing.assert_array_equal(got, array.astype(np.float32))


def test_a_large_tensor_is_converted_whole(tmp_path):
    """More values than are converted at a time."""
    array = np.arange((1 << 22) + 5, dtype=np.float32).reshape(1, -1)
    np.testing.assert_array_equal(read_one(tmp_path / "t.safetensors", array), array)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, dtype, value):
    with pytest.raises(UsageError, match=rf"net\.{ANCHOR}: holds NaN or infinite values"):
        read_one(tmp_path / "t.safetensors", np.array([[1.0, value]]).astype(dtype))


def test_weights_beyond_float16_are_refused_by_name_and_allowed_as_float32(tmp_path):
    array = np.array([[1.0, -65536.0]]).astype(ml_dtypes.bfloat16)
    with pytest.raises(UsageError, match=rf"net\.{ANCHOR}: must be within ±65504 for float16, got 65536"):
        read_one(tmp_path / "t.safetensors", array)
    assert read_one(tmp_path / "t.safetensors", array, "fp32").min() == -65536.0
    assert read_one(tmp_path / "t.safetensors", np.array([[65504.0]], np.float32), "fp16").max() == 65504.0


def test_another_dtype_is_refused_by_name(tmp_path):
    path = tmp_path / "t.safetensors"
    write_safetensors(path, {f"net.{ANCHOR}": ("F8_E4M3", [2, 2], bytes(4))})
    with pytest.raises(UsageError, match="dtype must be BF16, F16 or F32, got F8_E4M3"):
        Tensors(open_source(path, TRANSFORMER), "auto")[ANCHOR]


@pytest.mark.parametrize("cut", [0, 4, 8, 20, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path, cut):
    path = write(tmp_path / "t.safetensors")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UsageError, match=r"t\.safetensors: (not a safetensors file|cut short)"):
        read_header(path)


@pytest.mark.parametrize(
    "text", [b"[1]", b"{}x", b'{"a": {}}', b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}']
)
def test_a_damaged_header_is_refused(tmp_path, text):
    path = tmp_path / "t.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(UsageError, match="not a safetensors file: its header is damaged"):
        read_header(path)


def test_a_missing_file_is_a_usage_error_with_exit_code_2(tmp_path):
    with pytest.raises(UsageError, match=r"none\.safetensors: cannot be read: No such file") as caught:
        read_header(tmp_path / "none.safetensors")
    assert caught.value.exit_code == 2


def test_parts_are_selected_with_short_names_and_left_out_with_whole_ones(tmp_path):
    source = open_source(write(tmp_path / "t.safetensors", "llm_adapter.norm.weight"), TRANSFORMER)
    adapter = select(source, "llm_adapter.")
    assert (list(adapter.entries), adapter.prefix) == (["norm.weight"], "net.llm_adapter.")
    assert list(leave_out(source, r"llm_adapter\.").entries) == [ANCHOR]


def test_asking_whether_a_tensor_is_there_does_not_read_it(tmp_path):
    path = tmp_path / "t.safetensors"
    write_safetensors(path, {f"net.{ANCHOR}": ("F8_E4M3", [2, 2], bytes(4))})
    tensors = Tensors(open_source(path, TRANSFORMER), "auto")
    assert ANCHOR in tensors
    assert "bias" not in tensors
    assert tensors.get("bias") is None


def test_other_readers_read_what_this_one_reads(tmp_path):
    """Guards the test's own writer of raw parts."""
    path = tmp_path / "t.safetensors"
    write_safetensors(path, {"a": ("F16", [2], np.array([1, 2], np.float16).tobytes())})
    np.testing.assert_array_equal(load_file(path)["a"], [1, 2])
