"""Digests and checksums made right again after a change, so that what stands behind them is reached."""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable

PNG_START = b"\x89PNG\r\n\x1a\n"
_ZEROS = b"0" * 64


def seal_manifest(data: bytes) -> bytes:
    """The manifest with the self_sha256 of its bytes, where it still has a place for one."""
    places = list(re.finditer(rb'"self_sha256": "([0-9a-f]{64})"', data))
    if not places:
        return data
    start, end = places[-1].span(1)
    unsigned = data[:start] + _ZEROS + data[end:]
    return unsigned[:start] + hashlib.sha256(unsigned).hexdigest().encode() + unsigned[end:]


def seal_tensors(data: bytes) -> bytes:
    """The container with the digest of its bytes in its first line, where that still is one."""
    match = re.match(rb"(anima-batch [^\n]{1,60}) sha256:[0-9a-f]{64}\n", data)
    return wrap_tensors(match[1], data[match.end() :]) if match else data


def wrap_tensors(name: bytes, body: bytes) -> bytes:
    """A container by the published rule; `name` is such as `anima-batch checkpoint v1`."""
    return b"%s sha256:%s\n%s" % (name, hashlib.sha256(name + b"\n" + body).hexdigest().encode(), body)


def pack_body(header: bytes, data: bytes) -> bytes:
    """A safetensors file: 8 bytes of length, the header's JSON, the arrays."""
    return len(header).to_bytes(8, "little") + header + data


def split_body(body: bytes) -> tuple[bytes, bytes]:
    """The header's JSON and the arrays of a safetensors file."""
    end = 8 + int.from_bytes(body[:8], "little")
    return body[8:end], body[end:]


def read_chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """(type, content) of each chunk of a PNG, up to the first that is cut."""
    chunks, offset = [], len(PNG_START)
    while offset + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, offset)
        end = offset + 8 + length
        if end + 4 > len(data):
            break
        chunks.append((data[offset + 4 : offset + 8], data[offset + 8 : end]))
        offset = end + 4
    return chunks


def write_chunks(chunks: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A PNG of these chunks, each with its right length and checksum."""
    parts = [PNG_START]
    for kind, content in chunks:
        parts.append(struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)))
    return b"".join(parts)


def seal_png(data: bytes) -> bytes:
    """The PNG with right checksums, as far as its chunks can be followed."""
    return write_chunks(read_chunks(data)) if data.startswith(PNG_START) else data
