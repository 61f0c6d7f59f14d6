"""What only a process on the machine itself can tell: its Python, its packages, the clock, the room on the disk."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

_TIMEX_BYTES = 256  # struct timex has 208; `modes` = 0 at its start only asks
_TIMEX_STATUS = 40  # byte offset of `status`, on every 64-bit Linux
_UNSYNCHRONIZED = 0x40  # STA_UNSYNC


@dataclass(frozen=True, slots=True)
class Space:
    """Room for this user; `files` is None where the file system does not count them."""

    free_bytes: int
    files: int | None


@dataclass(frozen=True, slots=True)
class Process:
    """`seconds` since 1970. `lite2` is None where it is not installed, `synchronized` where the kernel does not say."""

    machine: str
    python: tuple[int, int]
    lite2: str | None
    seconds: float
    synchronized: bool | None
    space: Space | None


def read_process(outputs: str) -> Process:
    """Of this process, for pictures in the folder `outputs`, which need not exist yet."""
    return Process(
        machine=platform.machine(),
        python=sys.version_info[:2],
        lite2=installed_lite2(),
        seconds=time.time(),
        synchronized=_read_synchronized(),
        space=_read_space(outputs),
    )


def existing_folder(path: str) -> str:
    """The path itself where it exists, else its nearest parent that does; links are followed."""
    path = os.path.realpath(path)
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def installed_lite2() -> str | None:
    """The version of rknn-toolkit-lite2 that this Python finds; None where it finds none."""
    if find_spec("rknnlite") is None:
        return None
    try:
        return version("rknn-toolkit-lite2")
    except PackageNotFoundError:
        return "unknown"


def _read_synchronized() -> bool | None:
    """Whether a time service disciplines the kernel's clock; None where the kernel may not be asked."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        if ctypes.CDLL(None).adjtimex(timex) < 0:
            return None
    except (AttributeError, OSError):  # a C library without it
        return None
    status = int.from_bytes(timex.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], sys.byteorder)
    return not status & _UNSYNCHRONIZED


def _read_space(outputs: str) -> Space | None:
    with contextlib.suppress(OSError):
        status = os.statvfs(existing_folder(outputs))
        return Space(status.f_bavail * status.f_frsize, status.f_favail if status.f_files else None)
    return None
