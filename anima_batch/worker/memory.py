"""What a process holds and what the machine has left, read from /proc."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

GROWTH_BYTES = 64 << 20  # over the images of one process, before it is worth a word
GROWTH_SHARE = 0.1  # of what the process held at first
IMAGES_WATCHED = 4  # fewer make no trend


@dataclass(frozen=True)
class Memory:
    """Bytes resident in a process, and bytes that the machine could still give; None where /proc does not tell."""

    resident: int | None
    available: int | None

    def __str__(self) -> str:
        return f"it held {_megabytes(self.resident)}, {_megabytes(self.available)} were available"


def read_memory(pid: int) -> Memory:
    """The memory of a process and of the machine; some 30 microseconds, since it is read before each request."""
    return Memory(_read_resident(pid), _read_available())


def describe_growth(resident: Sequence[int]) -> str | None:
    """One line when a process that held so many bytes after each of its images grew with every one of them.

    The first image is left out, since it opens the graphs.
    """
    held = resident[1:]
    if len(held) < IMAGES_WATCHED or any(later <= earlier for earlier, later in itertools.pairwise(held)):
        return None
    growth = held[-1] - held[0]
    if growth < max(GROWTH_BYTES, GROWTH_SHARE * held[0]):
        return None
    each = growth / (len(held) - 1)
    return f"the worker process grew with each of its last {len(held)} images, by {each / 1e6:.0f} MB: it may leak"


def _read_resident(pid: int) -> int | None:
    content = _read(f"/proc/{pid}/statm").split()
    return int(content[1]) * os.sysconf("SC_PAGE_SIZE") if len(content) > 1 else None


def _read_available() -> int | None:
    _, found, rest = _read("/proc/meminfo").partition(b"MemAvailable:")
    return int(rest.split(maxsplit=1)[0]) << 10 if found else None


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except ProcessLookupError:  # it ended meanwhile
        return b""
    finally:
        os.close(descriptor)


def _megabytes(value: int | None) -> str:
    return "an unknown part of memory" if value is None else f"{value / 1e6:.0f} MB"
