"""A disk whose every write and flush is written down: two files in a small FUSE file system of our own.

`disk` is the backing file of a loop device. `events` takes what the job says to be durable; since the job's writes to
it pass through the same queue, their place among the disk's writes is exact.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TypeAlias

from crash.mounts import BLOCK_BYTES, mount, unmount

_HEADER = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding; <linux/fuse.h>, 7.31
_ANSWER = struct.Struct("<IiQ")  # length, -errno, unique
_READ = struct.Struct("<QQI")  # handle, offset, size
_WRITE = struct.Struct("<QQIIQII")  # handle, offset, size, flags, lock owner, flags, padding


class _Call(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_BIG_WRITES = 1 << 5
_KEEP_CACHE = 2
_MAX_WRITE = 128 << 10
_FOREVER = 1 << 30

_ROOT, _DISK, _EVENTS = 1, 2, 3
_NAMES = {b"disk": _DISK, b"events": _EVENTS}


@dataclass(frozen=True)
class Write:
    """A block of the disk and what was written to it; longer writes are several of these."""

    block: int
    data: bytes


@dataclass(frozen=True)
class Flush:
    """All that was written before is on the medium."""


@dataclass(frozen=True)
class Event:
    """A line of the job's `--events`, without its end."""

    line: str


Entry: TypeAlias = Write | Flush | Event


class LoggedDevice:
    """Serves the two files from memory and keeps the log; open it by `with`."""

    def __init__(self, image: bytes, folder: Path) -> None:
        self.log: list[Entry] = []
        self.disk, self.events = folder / "disk", folder / "events"
        self._folder = folder
        self._content = bytearray(image)
        self._begun_line = b""
        self._fuse = -1
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="logged device", daemon=True)

    def __enter__(self) -> LoggedDevice:
        self._folder.mkdir(exist_ok=True)
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        mount("logged", self._folder, "fuse", f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            unmount(self._folder, lazily=True)
        self._thread.join(timeout=30)
        os.close(self._fuse)
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        try:
            while True:
                request = os.read(self._fuse, _MAX_WRITE + BLOCK_BYTES)
                _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
                if opcode in (_Call.FORGET, _Call.BATCH_FORGET, _Call.INTERRUPT):
                    continue
                answer = self._answer(opcode, node, memoryview(request)[_HEADER.size :])
                number, data = (-answer, b"") if isinstance(answer, int) else (0, answer)
                with contextlib.suppress(FileNotFoundError):  # nobody waits for the answer any more
                    os.write(self._fuse, _ANSWER.pack(_ANSWER.size + len(data), number, unique) + data)
                if opcode == _Call.DESTROY:
                    return
        except OSError as error:
            if error.errno != errno.ENODEV:  # ENODEV: unmounted
                self._failure = error
        except BaseException as error:  # told by __exit__, in the thread that can do something about it
            self._failure = error

    def _answer(self, opcode: int, node: int, body: memoryview) -> bytes | int:
        """What the kernel gets: the answer's content, or an errno."""
        match opcode:
            case _Call.WRITE:
                return self._write(node, body)
            case _Call.READ:
                _, offset, size = _READ.unpack_from(body)
                return bytes(self._content[offset : offset + size]) if node == _DISK else b""
            case _Call.FSYNC:
                self.log += [Flush()] if node == _DISK else []
                return b""
            case _Call.LOOKUP:
                return self._look_up(bytes(body).rstrip(b"\0"))
            case _Call.GETATTR:
                return struct.pack("<QII", _FOREVER, 0, 0) + self._attributes(node)
        return _FIXED_ANSWERS.get(opcode, errno.ENOSYS)

    def _look_up(self, name: bytes) -> bytes | int:
        if (node := _NAMES.get(name)) is None:
            return errno.ENOENT
        return struct.pack("<4QII", node, 0, _FOREVER, _FOREVER, 0, 0) + self._attributes(node)

    def _write(self, node: int, body: memoryview) -> bytes | int:
        _, offset, size, *_ = _WRITE.unpack_from(body)
        data = bytes(body[_WRITE.size : _WRITE.size + size])
        if node == _EVENTS:
            *lines, self._begun_line = (self._begun_line + data).split(b"\n")  # a line may come in two pieces
            self.log += [Event(line.decode()) for line in lines]
            return struct.pack("<II", len(data), 0)
        if offset % BLOCK_BYTES or len(data) % BLOCK_BYTES:
            return errno.EINVAL  # the loop device has blocks of this size
        self._content[offset : offset + len(data)] = data
        for start in range(0, len(data), BLOCK_BYTES):
            self.log.append(Write((offset + start) // BLOCK_BYTES, data[start : start + BLOCK_BYTES]))
        return struct.pack("<II", len(data), 0)

    def _attributes(self, node: int) -> bytes:
        size = len(self._content) if node == _DISK else 0
        mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
        return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, BLOCK_BYTES, 0)


_FIXED_ANSWERS = {
    # version 7.31, read-ahead, flags, background queue, largest write, time granularity
    _Call.INIT: struct.pack("<4IHHII", 7, 31, _MAX_WRITE, _BIG_WRITES, 16, 12, _MAX_WRITE, 1) + bytes(36),
    _Call.OPEN: struct.pack("<QII", 0, _KEEP_CACHE, 0),
    _Call.STATFS: struct.pack("<5Q4I24x", 0, 0, 0, 0, 0, BLOCK_BYTES, 255, BLOCK_BYTES, 0),
    _Call.RELEASE: b"",
    _Call.FLUSH: b"",
    _Call.DESTROY: b"",
}


def apply(image: bytearray, entries: Iterable[Entry]) -> None:
    """Bring the writes among the entries into an image of the disk."""
    for entry in entries:
        if isinstance(entry, Write):
            start = entry.block * BLOCK_BYTES
            image[start : start + len(entry.data)] = entry.data
