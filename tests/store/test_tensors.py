from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anima_batch.store.integrity import CorruptError, NewerFormatError
from anima_batch.store.tensors import pack_tensors, unpack_tensors

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")


def small() -> bytes:
    return pack_tensors("checkpoint", {"x": np.arange(3, dtype=np.float32)}, {"step": 7})


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, ARRAYS, max_size=4), st.dictionaries(st.text(), JSON, max_size=3))
def test_tensors_and_meta_come_back_bit_for_bit(tensors, meta):
    found, found_meta = unpack_tensors(pack_tensors("checkpoint", tensors, meta), "checkpoint")
    assert found_meta == meta
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_nan_payloads_infinities_and_negative_zero_keep_their_bits():
    bits = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000, 1], dtype=np.uint32)
    found, _ = unpack_tensors(pack_tensors("latents", {"x": bits.view(np.float32)}, {}), "latents")
    np.testing.assert_array_equal(found["x"].view(np.uint32), bits)


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(12).reshape(3, 4)[::2, 1::2],
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.broadcast_to(np.float32(3), (2, 2)),
        np.array(3.5, dtype=">f8"),
    ],
    ids=["Fortran order", "strides", "big-endian", "broadcast", "big-endian 0-d"],
)
def test_values_do_not_depend_on_how_an_array_lies_in_memory(array):
    found, _ = unpack_tensors(pack_tensors("x", {"a": array}, {}), "x")
    assert found["a"].shape == array.shape
    np.testing.assert_array_equal(found["a"], array)


def test_equal_input_has_equal_bytes_in_any_order():
    a, b = np.ones(2, np.float32), np.zeros((), np.uint64)
    assert pack_tensors("x", {"a": a, "b": b}, {"p": 1, "q": 2}) == pack_tensors(
        "x", {"b": b, "a": a}, {"q": 2, "p": 1}
    )


def test_the_header_is_a_line_of_text_and_the_rest_is_safetensors():
    line, _, body = small().partition(b"\n")
    digest = hashlib.sha256(b"anima-batch checkpoint v1\n" + body).hexdigest()
    assert line.decode("ascii") == f"anima-batch checkpoint v1 sha256:{digest}"
    (name, tensor), *_ = safetensors.deserialize(body)
    assert (name, tensor["dtype"], tensor["shape"]) == ("x", "F32", [3])


def test_the_body_is_what_the_safetensors_library_writes():
    rng = np.random.default_rng(1)
    tensors = {
        "b": rng.standard_normal((2, 3)).astype(np.float32),
        "a \u00e9\n": rng.standard_normal((5, 1)).astype(np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "scalar": np.array(2.5, np.float32),
        "flags": np.array([True, False, True]),
    }
    body = pack_tensors("checkpoint", tensors, {"b": 1, "a": "\u96ea"}).partition(b"\n")[2]
    assert body == safetensors.numpy.save(tensors, metadata={"meta": '{"a":"\u96ea","b":1}'})


@pytest.mark.parametrize("dtype", ["complex64", "longdouble", "U3", "datetime64[s]"])
def test_values_that_the_format_has_no_name_for_are_refused(dtype: str):
    with pytest.raises(ValueError, match="must be of booleans or of numbers of up to 64 bits, got "):
        pack_tensors("checkpoint", {"x": np.zeros(2, dtype)}, {})


def test_every_flipped_bit_is_found():
    data = small()
    for offset in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[offset] ^= 1 << bit
            with pytest.raises(CorruptError):
                unpack_tensors(bytes(flipped), "checkpoint")


def test_every_cut_is_found():
    data = small()
    for length in range(len(data)):
        with pytest.raises(CorruptError):
            unpack_tensors(data[:length], "checkpoint")


def test_a_zeroed_tail_and_an_added_byte_are_found():
    data = small()
    for changed in (data[:-8] + bytes(8), data + b"\0", data + b"\n", b" " + data, bytes(len(data)), data + data):
        with pytest.raises(CorruptError):
            unpack_tensors(changed, "checkpoint")


def test_another_kind_is_refused_and_both_are_named():
    with pytest.raises(CorruptError, match=r"^ckpt\.0: not a valid history: it holds checkpoint: "):
        unpack_tensors(small(), "history", where="ckpt.0")


def test_a_later_format_is_told_apart_from_a_changed_file():
    body = small().partition(b"\n")[2]
    digest = hashlib.sha256(b"anima-batch checkpoint v2\n" + body).hexdigest()
    later = f"anima-batch checkpoint v2 sha256:{digest}\n".encode() + body
    with pytest.raises(
        NewerFormatError, match=r"^f: format must be at most v1, got v2: use the anima-batch that wrote it"
    ):
        unpack_tensors(later, "checkpoint", where="f")
    with pytest.raises(CorruptError):
        unpack_tensors(later.replace(b"v2", b"v3"), "checkpoint")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not safetensors",
        (2).to_bytes(8, "little") + b"{}",
        (22).to_bytes(8, "little") + b'{"__metadata__": {} } ',
        (38).to_bytes(8, "little") + json.dumps({"__metadata__": {"meta": "[[["}}).encode().ljust(38),
    ],
    ids=["empty", "noise", "no meta", "empty meta", "bad meta"],
)
def test_a_right_digest_over_a_wrong_body_is_refused(body: bytes):
    digest = hashlib.sha256(b"anima-batch x v1\n" + body).hexdigest()
    with pytest.raises(CorruptError, match=r"^x data: not a valid x: "):
        unpack_tensors(f"anima-batch x v1 sha256:{digest}\n".encode() + body, "x")


def test_meta_that_json_cannot_hold_is_refused_when_packing():
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack_tensors("x", {}, {"a": math.inf})


@pytest.mark.parametrize("kind", ["", "two words", "Upper", "line\n"])
def test_a_kind_that_would_break_the_header_is_refused(kind: str):
    with pytest.raises(ValueError, match="a kind must be"):
        pack_tensors(kind, {}, {})
