"""One container for named tensors with JSON beside them, in which any changed byte is found."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from anima_batch.files import canonical_json
from anima_batch.store.integrity import CorruptError, NewerFormatError

Array = npt.NDArray[Any]

FORMAT_VERSION = 1

# The line and its digest rule stay the same in every later version, so that "changed" and "newer" can be told apart.
_HEADER = re.compile(rb"(anima-batch ([a-z_]+) v([1-9][0-9]*)) sha256:([0-9a-f]{64})")
_HEADER_BYTES_MAX = 200
_INDEX_BYTES_MAX = 100_000_000  # safetensors' own limit for its JSON
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Packed:
    """What a container holds, and its digest: the one of its header line, which covers every other byte."""

    tensors: dict[str, Array]
    meta: dict[str, Any]
    sha256: str


@dataclass(frozen=True)
class _Header:
    name: bytes  # what the digest begins with
    kind: str
    version: int
    sha256: str
    bytes: int  # of the line with its end


def pack_tensors(kind: str, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> bytes:
    """The container's bytes: a header line in ASCII, then safetensors with `meta` as canonical JSON inside.

    `anima-batch <kind> v<version> sha256:<64 hex>\\n`; the digest is over `anima-batch <kind> v<version>\\n` and all
    bytes after the line. `kind` is of a-z and `_`. Equal input has equal bytes. Raises ValueError for meta that JSON
    cannot hold. A feature history has up to a hundred megabytes: the values are hashed where they lie and copied once.
    """
    if not re.fullmatch("[a-z_]+", kind) or "__metadata__" in tensors:
        raise ValueError(f"{kind}: a kind must be of a-z and _, a tensor must not be named __metadata__")
    # The widest first, so that each lies at a multiple of its width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    body: list[bytes | memoryview] = [_make_index(ordered, meta), *(_plain_bytes(array) for _, array in ordered)]
    name = f"anima-batch {kind} v{FORMAT_VERSION}".encode()
    return b"".join((name, b" sha256:", _digest(name, *body).encode(), b"\n", *body))


def packed_sha256(data: bytes) -> str:
    """The digest in the header line of what `pack_tensors` made, without hashing again."""
    return _parse_header(data, "packed", "container").sha256


def unpack_tensors(data: bytes, kind: str, *, where: str | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
    """(tensors, meta) as they were packed, bit for bit; `where` names the file in errors.

    Raises CorruptError for any changed, missing or added byte or another kind, NewerFormatError for a later format.
    """
    packed = _unpack(data, kind, where or f"{kind} data")
    return packed.tensors, packed.meta


def read_tensors(path: Path, kind: str) -> Packed:
    """The content of a container's file; raises as `unpack_tensors`, and OSError.

    The header says how long the file must be, so one that was grown to any size (a sparse one, say) is refused before
    it is read.
    """
    where = str(path)
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
        raise CorruptError(f"{path}: must be a regular file: put it out of the way")
    with path.open("rb") as stream:
        found = os.fstat(stream.fileno()).st_size
        header = _parse_header(stream.read(_HEADER_BYTES_MAX), where, kind)
        if header.version > FORMAT_VERSION:
            _refuse_newer(stream, header, where, kind)
        stream.seek(header.bytes)
        wanted = header.bytes + _body_bytes(stream, found - header.bytes, where, kind)
        if found != wanted:
            _refuse(where, kind, f"it must have {wanted} bytes, got {found}")
        stream.seek(0)
        return _unpack(stream.read(), kind, where)


def _make_index(tensors: Sequence[tuple[str, Array]], meta: Mapping[str, Any]) -> bytes:
    """What safetensors has before the values: 8 bytes of length, then JSON that is padded to a multiple of 8."""
    index: dict[str, Any] = {"__metadata__": {"meta": canonical_json(dict(meta))}}
    end = 0
    for name, array in tensors:
        start, end = end, end + array.nbytes
        index[name] = {"dtype": _name_dtype(array), "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _name_dtype(array: Array) -> str:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ValueError(f"a tensor must be of booleans or of numbers of up to 64 bits, got {array.dtype}")
    return "BOOL" if array.dtype.kind == "b" else f"{array.dtype.kind.upper()}{8 * array.dtype.itemsize}"


def _plain_bytes(array: Array) -> memoryview:
    """The values, little-endian in C order; not copied where they lie so."""
    plain = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    return plain.reshape(-1).view(np.uint8).data


def _unpack(data: bytes, kind: str, where: str) -> Packed:
    header = _parse_header(data, where, kind)
    if header.version > FORMAT_VERSION:
        _refuse_newer(io.BytesIO(data), header, where, kind)
    body = data[header.bytes :]
    _check_digest(_digest(header.name, body), header, where, kind)
    if header.kind != kind:
        _refuse(where, kind, f"it holds {header.kind}")
    try:
        return Packed(safetensors.numpy.load(body), _read_meta(body), header.sha256)
    except (safetensors.SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{where}: not a valid {kind}: {error}: remove it or restore it") from error


def _parse_header(data: bytes, where: str, kind: str) -> _Header:
    line, newline, _ = data[:_HEADER_BYTES_MAX].partition(b"\n")
    match = _HEADER.fullmatch(line)
    if not newline or match is None:
        _refuse(where, kind, "it is without its header line")
    name, found_kind, version, digest = match.groups()
    return _Header(name, found_kind.decode(), int(version), digest.decode(), len(line) + 1)


def _refuse_newer(stream: BinaryIO, header: _Header, where: str, kind: str) -> NoReturn:
    """Tell a file of a later version from a changed one, whatever lies behind its header line."""
    stream.seek(header.bytes)
    digest = hashlib.sha256(header.name + b"\n")
    while block := stream.read(_BLOCK_BYTES):
        digest.update(block)
    _check_digest(digest.hexdigest(), header, where, kind)
    raise NewerFormatError(
        f"{where}: format must be at most v{FORMAT_VERSION}, got v{header.version}: use the anima-batch that wrote it"
    )


def _check_digest(found: str, header: _Header, where: str, kind: str) -> None:
    if found != header.sha256:
        _refuse(where, kind, f"its sha256 must be {header.sha256}, got {found}")


def _body_bytes(stream: BinaryIO, room: int, where: str, kind: str) -> int:
    """What the safetensors at the stream's position must take, by its index."""
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= min(room, _INDEX_BYTES_MAX):
        _refuse(where, kind, f"its index must have 2 to {min(room, _INDEX_BYTES_MAX)} bytes, got {length}")
    try:
        index = json.loads(stream.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in index.items() if name != "__metadata__"]
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptError(f"{where}: not a valid {kind}: its index: {error}: remove it or restore it") from error
    return 8 + length + max(ends, default=0)


def _digest(name: bytes, *body: bytes | memoryview) -> str:
    digest = hashlib.sha256(name + b"\n")
    for part in body:
        digest.update(part)
    return digest.hexdigest()


def _refuse(where: str, kind: str, fault: str) -> NoReturn:
    raise CorruptError(f"{where}: not a valid {kind}: {fault}: remove it or restore it")


def _read_meta(body: bytes) -> dict[str, Any]:
    # The safetensors reader for NumPy does not hand out the metadata: 8 bytes of length, then the JSON header.
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    meta = json.loads(header["__metadata__"]["meta"])
    if not isinstance(meta, dict):
        raise TypeError(f"its meta must be an object, got {type(meta).__name__}")
    return meta
