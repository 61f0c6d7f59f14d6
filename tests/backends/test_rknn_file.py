"""The reader of .rknn files on files that Rockchip's toolkits wrote (tests/golden/rknn), and on damaged ones."""

import contextlib
import gzip
import json
import os
import struct
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from board.graph_file import make_graph_file
from hypothesis import given, settings
from hypothesis import strategies as st

from anima_batch.backends.base import TensorSpec
from anima_batch.backends.rknn_file import read_buffer_sizes, read_rknn
from anima_batch.errors import ModelSetError

GOLDEN = Path(__file__).parents[1] / "golden" / "rknn"
VERSIONS = ["2.3.0", "2.3.2", "2.5.0"]
HEADER_BYTES = 64


def golden(name):
    return gzip.decompress((GOLDEN / f"cross_attn-{name}.rknn.gz").read_bytes())


def json_start(data):
    return HEADER_BYTES + struct.unpack_from("<Q", data, 16)[0]


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Reads bytes as a file: the description, or the error's line without the file's name."""
    path = tmp_path_factory.mktemp("graphs") / "graph.rknn"

    def read(data):
        path.write_bytes(data)
        try:
            return read_rknn(path)
        except ModelSetError as error:
            return str(error).removeprefix(f"{path}: ")

    return read


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_of_each_toolkit_tells_version_platform_tensors_and_custom_string(version, read):
    """Producer: rknn-toolkit2, as tests/golden/rknn/README.md says."""
    found = read(golden(version))
    assert found.toolkit == version
    assert found.compiler.startswith(f"{version}(compiler version: {version} (")
    assert found.platform == "rk3588"
    assert found.inputs == (TensorSpec("z", "float16", (1, 16, 64)), TensorSpec("context", "float16", (1, 8, 32)))
    assert found.outputs == (TensorSpec("out", "float16", (1, 16, 64)),)
    assert found.custom == ("" if version == "2.3.0" else '{"role": "transformer.00.cross_attn"}')


def test_a_file_for_another_chip_is_refused_by_its_name(read):
    """Producer: rknn-toolkit2 2.3.2 with target_platform rk3576."""
    found = read(golden("2.3.2-rk3576"))
    assert found == "target platform must be rk3588, got 'rk3576': convert it for rk3588"


@pytest.mark.parametrize("version", VERSIONS)
def test_constants_of_a_float16_file_have_two_bytes_a_value(version, tmp_path):
    """Producer: rknn-toolkit2, as tests/golden/rknn/README.md says; beside weights there are tables of all sizes."""
    path = tmp_path / "graph.rknn"
    path.write_bytes(golden(version))
    found = Counter(read_buffer_sizes(path))
    assert found[2 * 64 * 64] >= 2  # q and the output
    assert found[2 * 32 * 64] >= 2  # k and v, of a context half as wide


@pytest.mark.parametrize("place", range(0, 64, 3))
def test_a_damaged_list_of_constants_is_an_error_or_other_sizes(place, tmp_path):
    """Bytes from where the root table begins, each flipped: no other exception, and no endless list."""
    path, data = tmp_path / "graph.rknn", bytearray(golden("2.3.2"))
    root = HEADER_BYTES + struct.unpack_from("<I", data, HEADER_BYTES)[0]
    data[root + place] ^= 0xFF
    path.write_bytes(data)
    with contextlib.suppress(ModelSetError):
        assert len(read_buffer_sizes(path)) <= 100_000


def test_constants_of_a_file_that_is_missing_or_cut_are_errors(tmp_path):
    path = tmp_path / "graph.rknn"
    with pytest.raises(ModelSetError, match="No such file"):
        read_buffer_sizes(path)
    path.write_bytes(golden("2.3.2")[:200])
    with pytest.raises(ModelSetError, match="is damaged"):
        read_buffer_sizes(path)


def test_the_tests_own_files_are_read_as_those_of_the_toolkit(read):
    data = make_graph_file(
        {"z": (1, 16, 64), "context": (1, 8, 32)}, {"out": (1, 16, 64)}, '{"role": "transformer.00.cross_attn"}'
    )
    own, real = read(data), read(golden("2.3.2"))
    assert (own.inputs, own.outputs, own.custom, own.toolkit) == (real.inputs, real.outputs, real.custom, real.toolkit)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_flipped_byte_of_header_and_description_is_an_error_or_changes_nothing(version, read):
    data = golden(version)
    whole, places = read(data), [*range(HEADER_BYTES), *range(json_start(data), len(data))]
    silent = []
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        found = read(bytes(damaged))
        if isinstance(found, str):
            assert found.isprintable(), place
        else:
            assert found == whole, place
            silent.append(place)
    assert len(silent) < 0.7 * len(places)  # many keys of the description are not read
    assert min(silent) >= HEADER_BYTES


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_cut_anywhere_in_header_or_description_is_an_error(version, read):
    data = golden(version)
    for length in [*range(HEADER_BYTES + 1), *range(json_start(data) - 2, len(data), 7), len(data) - 1]:
        assert isinstance(read(data[:length]), str), length
    assert isinstance(read(data + b"\0"), str)


@settings(max_examples=300, deadline=None)
@given(
    version=st.sampled_from(VERSIONS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4),
)
def test_bytes_written_over_anything_give_a_description_or_one_line_in_bounded_memory(version, changes, read):
    data = bytearray(golden(version))
    ends = (HEADER_BYTES + 2048, len(data) - json_start(bytes(data)))  # header with the root table, and description
    for place, content in changes:
        start = place % ends[0] if place & 1 else len(data) - 1 - place % ends[1]
        data[start : start + len(content)] = content
    tracemalloc.start()
    try:
        found = read(bytes(data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data) + (32 << 20)
    assert not isinstance(found, str) or (found.isprintable() and len(found) < 600)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=400), prefix=st.sampled_from([b"", b"RKNN", b"RKNN\0\0\0\0" + struct.pack("<Q", 6)]))
def test_garbage_is_one_line(data, prefix, read):
    assert isinstance(read(prefix + data), str)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "not a .rknn file: must begin with RKNN, got b'': convert it again"),
        (b"\x7fELF" + bytes(100), "not a .rknn file: must begin with RKNN, got b'\\x7fELF': convert it again"),
        (b"RKNN\0\0", "the .rknn file is damaged: it ends after 6 bytes, in its header: convert it again"),
        (
            b"RKNN\0\0\0\0" + struct.pack("<QQ", 7, 0) + bytes(40),
            "format version must be 6, got 7: convert it by a toolkit 2.x",
        ),
        (
            b"RKNN\0\0\0\0" + struct.pack("<QQ", 6, 2**64 - 1) + bytes(40),
            f"the .rknn file is damaged: its graph must end before byte 64, got {2**64 + 63}: convert it again",
        ),
    ],
)
def test_what_is_no_graph_of_these_toolkits_is_named(data, fault, read):
    assert read(data) == fault


@pytest.mark.parametrize("toolkit", ["3.0.0", "1.7.5", "2", "2.3.2; rm", ""])
def test_a_toolkit_of_another_generation_is_refused(toolkit, read):
    found = read(make_graph_file({"z": (1, 2)}, {"out": (1, 2)}, toolkit=toolkit))
    assert found == f"toolkit must be 2.x, got {toolkit!r}: take a newer anima-batch for it"


@pytest.mark.parametrize("shape", [(0, 2), (-1, 2), (2**20, 2**20), tuple([1] * 17)])
def test_shapes_that_no_array_can_have_are_refused(shape, read):
    assert "cannot have the shape" in read(make_graph_file({"z": shape}, {"out": (1, 2)}))


def test_an_unknown_dtype_is_refused(read):
    assert "has an unknown dtype: 'float7'" in read(make_graph_file({"z": (1, 2)}, {"out": (1, 2)}, dtype="float7"))


@pytest.mark.parametrize("bomb", [b"[" * 500_000, b'{"a":' * 100_000, b'{"version": ' + b"9" * 100_000 + b"}", b"7"])
def test_a_description_that_is_a_bomb_is_one_line_at_once(bomb, read):
    data = make_graph_file({"z": (1, 2)}, {"out": (1, 2)})
    end = json_start(data)
    started = time.perf_counter()
    assert read(data[:end] + struct.pack("<Q", len(bomb)) + bomb).startswith("the .rknn file is damaged: its descript")
    assert time.perf_counter() - started < 5  # some milliseconds, on a machine that others use too


def test_a_description_of_gigabytes_is_refused_before_it_is_read(tmp_path):
    """The file is sparse: it takes no room."""
    path, data = tmp_path / "large.rknn", make_graph_file({"z": (1, 2)}, {"out": (1, 2)})
    end, size = json_start(data), 1 << 36
    path.write_bytes(data[:end] + struct.pack("<Q", size))
    os.truncate(path, end + 8 + size)
    with pytest.raises(ModelSetError, match=rf"its description must be at most 1048576 bytes, got {size}"):
        read_rknn(path)


def test_parts_that_disagree_are_damage(read):
    data = make_graph_file({"z": (1, 2)}, {"out": (1, 2)})
    end = json_start(data)
    described = json.loads(data[end + 8 :])

    def changed(**entries):
        text = json.dumps(described | entries).encode()
        return read(data[:end] + struct.pack("<Q", len(text)) + text)

    assert changed() == read(data)
    assert "name toolkit '2.3.0' and" in changed(version="2.3.0")
    assert "name the platforms ['rk3576'] and 'rk3588'" in changed(target_platform=["rk3576"])
    assert "give 'z' the shapes (1, 3) and (1, 2)" in changed(
        norm_tensor=[{**described["norm_tensor"][0], "size": [1, 3]}, described["norm_tensor"][1]]
    )
    assert "name the inputs ['y'] and ['z']" in changed(
        norm_tensor=[{**described["norm_tensor"][0], "url": "y"}, described["norm_tensor"][1]]
    )


def test_a_missing_file_and_a_pipe_are_named(tmp_path):
    with pytest.raises(ModelSetError, match=r"gone.rknn: No such file or directory: run `anima-batch models verify`"):
        read_rknn(tmp_path / "gone.rknn")
    os.mkfifo(tmp_path / "pipe.rknn")
    with pytest.raises(ModelSetError, match=r"pipe.rknn: must be a regular file"):
        read_rknn(tmp_path / "pipe.rknn")
