"""What a `.rknn` file says of itself, read without Rockchip's libraries and before any of them sees the file.

The layout was read off files of rknn-toolkit2 2.3.0, 2.3.2 and 2.5.0: a header of 64 bytes, a FlatBuffer with all that
the runtime needs, and a JSON description of the interface. The two parts say the same things twice, and are compared.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from anima_batch.backends.base import TensorSpec
from anima_batch.errors import ModelSetError

FORMAT_VERSION = 6
PLATFORM = "rk3588"  # the RK3588S has the same NPU and the same name here
TOOLKITS = "2"  # the major version of the toolkits whose files were seen

_MAGIC = b"RKNN\0\0\0\0"
_HEADER_BYTES = 64
_TEXT_BYTES = 1 << 20  # far above any interface of a few tensors
_MOST_TENSORS = 64
_MOST_DIMENSIONS = 16  # as many as the runtime's own structures hold
_FIELDS = {"attributes": 3, "version": 7, "platform": 8, "custom": 11, "inputs": 12, "outputs": 13}  # of the root table
_BUFFERS = 20  # also of the root table
_MOST_BUFFERS = 100_000
_ATTRIBUTES = re.compile(
    r"'([^']{1,255})': \{(?:'is_output': True, )?'idx': \d{1,4}, 'shape': \[(\d{1,10}(?:, \d{1,10}){0,15})\]"
)
_KINDS = {"float16", "float32", "int8", "int16", "int32", "int64", "uint8", "bool"}


@dataclass(frozen=True)
class RknnDescription:
    """A compiled graph: `toolkit` is "2.3.2", `compiler` the text that names its build; inputs in the graph's order."""

    toolkit: str
    compiler: str
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    custom: str


class _FormatError(Exception):
    """What is wrong with the content, for the line that names the file."""


def read_rknn(path: Path) -> RknnDescription:
    """The description in a file for the RK3588; raises ModelSetError for any other file. Reads a few kilobytes."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would wait for its other side
            raise ModelSetError(f"{path}: must be a regular file: run `anima-batch models verify`")
        with path.open("rb") as stream:
            return _read(stream)
    except OSError as error:
        raise ModelSetError(f"{path}: {error.strerror}: run `anima-batch models verify`") from error
    except _FormatError as error:
        raise ModelSetError(f"{path}: {error}") from error


def read_buffer_sizes(path: Path) -> tuple[int, ...]:
    """Bytes of each constant in a file that `read_rknn` takes, weights among them; raises ModelSetError."""
    try:
        with path.open("rb") as stream:
            stream.seek(len(_MAGIC) + 8)
            (graph_bytes,) = struct.unpack("<Q", stream.read(8))
            return tuple(_read_buffers(_Window(stream, _HEADER_BYTES, graph_bytes)))
    except OSError as error:
        raise ModelSetError(f"{path}: {error.strerror}: run `anima-batch models verify`") from error
    except _FormatError as error:
        raise ModelSetError(f"{path}: {error}") from error


def _read_buffers(graph: _Window) -> Iterator[int]:
    """The root table lists tables, whose one field is a vector of bytes: none, where a tensor is no constant."""
    place = _find_field(graph, graph.number(0, "I"), _BUFFERS)
    if not place:
        raise _damaged("it has no list of constants")
    start = place + graph.number(place, "I")
    if (count := graph.number(start, "I")) > _MOST_BUFFERS:
        raise _damaged(f"its constants must be at most {_MOST_BUFFERS}, got {count}")
    for entry in range(start + 4, start + 4 + 4 * count, 4):
        field = _find_field(graph, entry + graph.number(entry, "I"), 0)
        yield graph.number(field + graph.number(field, "I"), "I") if field else 0


def _read(stream: BinaryIO) -> RknnDescription:
    table, described = _read_parts(stream)
    compiler = _text(table["version"], "version")
    toolkit = _entry(described, "version", str)
    if not compiler.startswith(f"{toolkit}("):
        raise _damaged(f"its two parts name toolkit {toolkit!r:.60} and {compiler!r:.60}")
    if not re.fullmatch(rf"{TOOLKITS}(\.\d{{1,4}}){{1,3}}(\w{{1,20}})?", toolkit):
        raise _FormatError(f"toolkit must be {TOOLKITS}.x, got {toolkit!r:.60}: take a newer anima-batch for it")
    platform = _text(table["platform"], "target platform")
    if (named := _entry(described, "target_platform", list)) != [platform]:
        raise _damaged(f"its two parts name the platforms {named!r:.60} and {platform!r:.60}")
    if platform != PLATFORM:
        raise _FormatError(f"target platform must be {PLATFORM}, got {platform!r:.60}: convert it for {PLATFORM}")
    inputs, outputs = _read_tensors(described, table)
    return RknnDescription(toolkit, compiler, platform, inputs, outputs, _text(table["custom"], "custom string"))


def _read_parts(stream: BinaryIO) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The texts in the root table of the FlatBuffer, and the JSON object behind it."""
    size = os.fstat(stream.fileno()).st_size
    header = stream.read(_HEADER_BYTES)
    if header[: len(_MAGIC)] != _MAGIC[: len(header)] or not header:
        raise _FormatError(f"not a .rknn file: must begin with RKNN, got {header[:4]!r}: convert it again")
    if len(header) < _HEADER_BYTES:
        raise _damaged(f"it ends after {size} bytes, in its header")
    version, graph_bytes = struct.unpack_from("<QQ", header, len(_MAGIC))
    if version != FORMAT_VERSION:
        raise _FormatError(
            f"format version must be {FORMAT_VERSION}, got {version}: convert it by a toolkit {TOOLKITS}.x"
        )
    if header.count(0, 24) != _HEADER_BYTES - 24:
        raise _damaged("its header has more in it than is known")
    end = _HEADER_BYTES + graph_bytes
    if end + 8 > size:
        raise _damaged(f"its graph must end before byte {size}, got {end}")
    stream.seek(end)
    (json_bytes,) = struct.unpack("<Q", stream.read(8))
    if end + 8 + json_bytes != size:
        raise _damaged(f"it must have {end + 8 + json_bytes} bytes, got {size}")
    if json_bytes > _TEXT_BYTES:
        raise _damaged(f"its description must be at most {_TEXT_BYTES} bytes, got {json_bytes}")
    described = _parse_json(stream.read(json_bytes), "description")
    return _read_table(_Window(stream, _HEADER_BYTES, graph_bytes)), described


@dataclass(frozen=True)
class _Window:
    """A stretch of the file that reads never leave."""

    stream: BinaryIO
    start: int
    length: int

    def read(self, offset: int, count: int) -> bytes:
        if not 0 <= offset <= self.length - count:
            raise _damaged(f"its graph points to byte {offset}, beyond its {self.length}")
        self.stream.seek(self.start + offset)
        data = self.stream.read(count)
        if len(data) < count:
            raise _damaged("it was cut short while it was read")
        return data

    def number(self, offset: int, kind: str) -> int:
        (value,) = struct.unpack(f"<{kind}", self.read(offset, struct.calcsize(kind)))
        return int(value)


def _read_table(graph: _Window) -> dict[str, bytes]:
    """The texts of the root table; one that is not there is empty.

    A FlatBuffer begins with the offset of its root table. A table begins with the way back to its list of fields: two
    lengths, then each field's offset in the table (0: it is not there), where the way on to its bytes is.
    """
    root = graph.number(0, "I")
    places = {name: _find_field(graph, root, index) for name, index in _FIELDS.items()}
    return {name: _read_bytes(graph, place, name) if place else b"" for name, place in places.items()}


def _find_field(graph: _Window, table: int, index: int) -> int:
    """Where a field of a table lies; 0 where it is not there."""
    fields = table - graph.number(table, "i")
    known = (graph.number(fields, "H") - 4) // 2
    offset = graph.number(fields + 4 + 2 * index, "H") if index < known else 0
    return table + offset if offset else 0


def _read_bytes(graph: _Window, at: int, name: str) -> bytes:
    start = at + graph.number(at, "I")
    length = graph.number(start, "I")
    if length > _TEXT_BYTES:
        raise _damaged(f"its {name} must be at most {_TEXT_BYTES} bytes, got {length}")
    return graph.read(start + 4, length)


def _read_tensors(
    described: dict[str, Any], table: dict[str, bytes]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs, each in the graph's order; names and shapes must be the same in both parts of the file."""
    shapes = _read_shapes(described)
    sides: dict[str, dict[int, tuple[str, tuple[int, ...]]]] = {"input": {}, "output": {}}
    for link in _entries(described, "graph"):
        side, place = sides.get(_entry(link, "left", str)), _entry(link, "left_tensor_id", int)
        tensor = shapes.get(_entry(link, "right_tensor_id", int))
        if side is None or tensor is None or place in side or link.get("right") != "norm_tensor":
            raise _damaged(f"its description has a wrong link: {link!r:.100}")
        side[place] = tensor
    kinds = {side: _parse_json(table[f"{side}s"], f"list of {side}s") for side in sides}
    inputs, outputs = (_join(side, sides[side], kinds[side]) for side in ("input", "output"))
    _compare_shapes((*inputs, *outputs), table["attributes"])
    return inputs, outputs


def _read_shapes(described: dict[str, Any]) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Tensor id -> (name, shape)."""
    shapes = {}
    for tensor in _entries(described, "norm_tensor"):
        name, size = _entry(tensor, "url", str), _entry(tensor, "size", list)
        shapes[_entry(tensor, "tensor_id", int)] = (name, _check_shape(name, size))
    return shapes


def _check_shape(name: str, size: Sequence[object]) -> tuple[int, ...]:
    sound = tuple(length for length in size if type(length) is int and length > 0)
    if len(sound) != len(size) or len(size) > _MOST_DIMENSIONS or math.prod(sound) >= 2**31:
        raise _damaged(f"tensor {name!r:.60} cannot have the shape {size!r:.60}")
    return sound


def _join(
    side: str, tensors: Mapping[int, tuple[str, tuple[int, ...]]], kinds: Mapping[str, Any]
) -> tuple[TensorSpec, ...]:
    """The specs of one side; `kinds` is name -> {"dtype": ...}."""
    names = {name for name, _ in tensors.values()}
    if not tensors or set(tensors) != set(range(len(tensors))) or len(names) < len(tensors) or names != set(kinds):
        raise _damaged(f"its two parts name the {side}s {sorted(names)!r:.100} and {sorted(kinds)!r:.100}")
    specs = []
    for _, (name, shape) in sorted(tensors.items()):
        kind = kinds[name].get("dtype") if isinstance(kinds[name], dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise _damaged(f"{side} {name!r:.60} has an unknown dtype: {kind!r:.60}")
        specs.append(TensorSpec(name, kind, shape))
    return tuple(specs)


def _compare_shapes(tensors: Sequence[TensorSpec], attributes: bytes) -> None:
    """The graph's own attributes are a Python literal, in which each tensor stands as `_ATTRIBUTES` says."""
    found = {
        name: tuple(map(int, lengths.split(",")))
        for name, lengths in _ATTRIBUTES.findall(_text(attributes, "attributes"))
    }
    for spec in tensors:
        if spec.shape != found.get(spec.name):
            raise _damaged(
                f"its two parts give {spec.name!r:.60} the shapes {spec.shape} and {found.get(spec.name)!r:.60}"
            )


def _entries(described: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = _entry(described, key, list)
    if len(entries) > 2 * _MOST_TENSORS or not all(isinstance(entry, dict) for entry in entries):
        raise _damaged(f"its description has a wrong {key}: {entries!r:.100}")
    return entries


def _entry(described: dict[str, Any], key: str, kind: type) -> Any:  # noqa: ANN401 - an instance of `kind`
    value = described.get(key)
    if type(value) is not kind:
        raise _damaged(f"its description has no {key}, or a wrong one: {value!r:.60}")
    return value


def _parse_json(data: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(_text(data, what))
    except (ValueError, RecursionError) as error:
        raise _damaged(f"its {what} is no JSON: {str(error)[:100]}") from error
    if not isinstance(value, dict):
        raise _damaged(f"its {what} must be a JSON object, got {type(value).__name__}")
    return value


def _text(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(f"its {what} is no text: byte {data[error.start]:#04x} at {error.start}") from error


def _damaged(what: str) -> _FormatError:
    return _FormatError(f"the .rknn file is damaged: {what}: convert it again")
