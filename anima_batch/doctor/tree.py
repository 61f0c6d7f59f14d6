"""Reading the small files of /proc, /sys and /usr/lib under a root, whatever lies there."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

TEXT_BYTES = 64 << 10
TABLE_BYTES = 4 << 20  # a mount table of a machine with thousands of containers is this large
LIBRARY_BYTES = 64 << 20  # librknnrt.so has about 8 MB
NAMES = 1000  # entries of a folder that are looked at
_BLOCK_BYTES = 1 << 20

_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_DENIED = (errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Reading:
    """A file's bytes, or why there are none; `path` is absolute, as on the machine that is examined."""

    path: str
    data: bytes | None
    fault: str = ""
    absent: bool = False
    denied: bool = False

    @property
    def text(self) -> str:
        """Its text without blanks and NULs at the ends; "" where there is none."""
        return (self.data or b"").decode("utf-8", "replace").strip("\0 \t\r\n")

    @property
    def complaint(self) -> str:
        """What to say where it could not be read, or not understood."""
        said = f"not understood: {self.text:.60}" if self.text else "empty"
        return f"{self.path}: {self.fault or said}"


class Tree:
    """The files below a root folder: "/" of this machine, or a copy of another one's.

    A copy may hold anything: pipes, devices, links that lead elsewhere, files without an end. None of it is followed or
    waited for.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real = os.path.realpath(root)

    @property
    def live(self) -> bool:
        """Whether it is this machine itself."""
        return self._real == "/"

    def read(self, path: str, limit: int = TEXT_BYTES) -> Reading:
        """A regular file's bytes, at most so many; `path` is absolute."""
        try:
            return Reading(path, _read_regular(self._locate(path), limit))
        except OSError as error:
            fault = (error.strerror or "cannot be read").lower()
            return Reading(path, None, fault, error.errno in _ABSENT, error.errno in _DENIED)

    def names(self, path: str) -> list[str]:
        """What a folder holds, sorted; nothing where it is missing or closed."""
        try:
            with os.scandir(self._locate(path)) as entries:
                return sorted(entry.name for entry, _ in zip(entries, range(NAMES), strict=False))
        except OSError:
            return []

    def has(self, path: str) -> bool:
        """Whether something lies there."""
        try:
            return os.path.exists(self._locate(path))
        except OSError:
            return False

    def usable(self, path: str) -> bool:
        """Whether this user may read and write it."""
        try:
            return os.access(self._locate(path), os.R_OK | os.W_OK, effective_ids=True)
        except OSError:
            return False

    def _locate(self, path: str) -> str:
        """The real path of it; raises OSError for one that a link leads out of a copied tree."""
        found = os.path.realpath(os.path.join(self._real, path.lstrip("/")))
        if self.live or found == self._real or found.startswith(self._real + os.sep):
            return found
        raise OSError(errno.EXDEV, "a link out of the tree", path)


def _read_regular(path: str, limit: int) -> bytes:
    # A pipe must not be waited for, and a terminal must not become ours.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        blocks, length = [], 0
        if status.st_size <= limit:  # of what /proc and /sys make up, 0 or a page
            while block := os.read(descriptor, min(_BLOCK_BYTES, limit + 1 - length)):
                blocks.append(block)
                length += len(block)
        if status.st_size > limit or length > limit:
            raise OSError(errno.EFBIG, f"longer than {limit} bytes")
        return b"".join(blocks)
    finally:
        os.close(descriptor)
