"""One container for named tensors with JSON beside them, in which any changed byte is found."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

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


def pack_tensors(kind: str, tensors: Mapping[str, Array], meta: Mapping[str, Any]) -> bytes:
    """The container's bytes: a header line in ASCII, then safetensors with `meta` as canonical JSON inside.

    `anima-batch <kind> v<version> sha256:<64 hex>\\n`; the digest is over `anima-batch <kind> v<version>\\n` and all
    bytes after the line. `kind` is of a-z and `_`. Equal input has equal bytes. Raises ValueError for meta that JSON
    cannot hold.
    """
    if not re.fullmatch("[a-z_]+", kind) or "__metadata__" in tensors:
        raise ValueError(f"{kind}: a kind must be of a-z and _, a tensor must not be named __metadata__")
    # safetensors reads the buffer behind an array as it lies: strides and byte order must be plain. Unlike
    # ascontiguousarray, asarray leaves a 0-d array 0-d.
    plain = {name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in tensors.items()}
    body = safetensors.numpy.save(plain, metadata={"meta": canonical_json(dict(meta))})
    name = f"anima-batch {kind} v{FORMAT_VERSION}".encode()
    return b"".join((name, b" sha256:", _digest(name, body).encode(), b"\n", body))


def unpack_tensors(data: bytes, kind: str, *, where: str | None = None) -> tuple[dict[str, Array], dict[str, Any]]:
    """(tensors, meta) as they were packed, bit for bit; `where` names the file in errors.

    Raises CorruptError for any changed, missing or added byte or another kind, NewerFormatError for a later format.
    """
    where = where or f"{kind} data"
    line, newline, _ = data[:_HEADER_BYTES_MAX].partition(b"\n")
    header = _HEADER.fullmatch(line)
    if not newline or header is None:
        _refuse(where, kind, f"got {len(data)} bytes without its header line")
    name, found_kind, version, digest = header.groups()
    body = data[len(line) + 1 :]
    found = _digest(name, body)
    if found != digest.decode():
        _refuse(where, kind, f"its sha256 must be {digest.decode()}, got {found}")
    if found_kind.decode() != kind:
        _refuse(where, kind, f"it holds {found_kind.decode()}")
    if int(version) > FORMAT_VERSION:
        raise NewerFormatError(
            f"{where}: format must be at most v{FORMAT_VERSION}, got v{int(version)}: use the anima-batch that wrote it"
        )
    try:
        return safetensors.numpy.load(body), _read_meta(body)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{where}: not a valid {kind}: {error}: remove it or restore it") from error


def _digest(name: bytes, body: bytes) -> str:
    digest = hashlib.sha256(name + b"\n")
    digest.update(body)  # apart, so that a body of many megabytes is not copied
    return digest.hexdigest()


def _refuse(where: str, kind: str, fault: str) -> NoReturn:
    raise CorruptError(f"{where}: not a valid {kind}: {fault}: remove it or restore it")


def _read_meta(body: bytes) -> dict[str, Any]:
    # The safetensors reader for NumPy does not hand out the metadata: 8 bytes of length, then the JSON header.
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    meta: dict[str, Any] = json.loads(header["__metadata__"]["meta"])
    return meta
