"""What C libraries print, during a call and before a crash: they tell the cause nowhere else."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock

KEPT_BYTES = 16 << 10  # the end of what was printed
_LIMIT_BYTES = 1 << 20  # of memory, before all else is given back


class PrintedFile:
    """An unnamed file in memory that a child process has in the place of stdout and stderr.

    What is printed lies in it at once, with nobody to pass it on, so that the last words before a crash are there, too.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("printed")
        # Whatever is cut off, the next word stands behind the last one, and several processes may write.
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, os.O_APPEND)
        self._before = b""  # it was cut

    def read_end(self) -> str:
        """The last of what was printed."""
        return self._read_end().decode(errors="replace")

    def trim(self) -> None:
        """Give back the memory of all but the end once it is much: a library may print for hours."""
        if os.fstat(self.descriptor).st_size > _LIMIT_BYTES:
            self._before = self._read_end()
            os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        """Forget it; a child that lives keeps its own descriptors."""
        os.close(self.descriptor)

    def _read_end(self) -> bytes:
        size = os.fstat(self.descriptor).st_size
        return (self._before + _read(self.descriptor, 0, size))[-KEPT_BYTES:]


@dataclass(eq=False)  # each is its own, whatever it heard
class PrintedText:
    """The end of what was printed during a call, complete once the call has ended.

    Not `alone` if another call, which may have said it, was under way.
    """

    text: str = ""
    alone: bool = True


class Printing:
    """What is printed during calls, of any threads, in a process whose stderr is a `PrintedFile`.

    Elsewhere nothing is heard: all of it goes straight to whoever reads it.
    """

    def __init__(self) -> None:
        self._is_kept = _is_kept(2)
        self._lock = Lock()
        self._listening: list[PrintedText] = []

    @contextlib.contextmanager
    def listen(self) -> Iterator[PrintedText]:
        """What is printed from here to the context's end, by whichever thread."""
        heard = PrintedText()
        begin = self._end()
        with self._lock:
            self._listening.append(heard)
            if len(self._listening) > 1:
                for each in self._listening:
                    each.alone = False
        try:
            yield heard
        finally:
            heard.text = _read(2, begin, self._end()).decode(errors="replace") if self._is_kept else ""
            with self._lock:
                self._listening.remove(heard)

    def _end(self) -> int:
        """The offset behind all that was printed."""
        if not self._is_kept:
            return 0
        _flush()
        return os.fstat(2).st_size


def _is_kept(descriptor: int) -> bool:
    try:
        flags, mode = fcntl.fcntl(descriptor, fcntl.F_GETFL), os.fstat(descriptor).st_mode
    except OSError:  # closed
        return False
    return stat.S_ISREG(mode) and flags & os.O_ACCMODE == os.O_RDWR and bool(flags & os.O_APPEND)


def _read(descriptor: int, begin: int, end: int) -> bytes:
    """What was printed between two offsets, or its end; a file that was cut meanwhile begins anew."""
    begin = max(begin if begin <= end else 0, end - KEPT_BYTES)
    return os.pread(descriptor, end - begin, begin)


def _flush() -> None:
    """Empty the buffers of Python and of the C library, so that no text turns up on the wrong side."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
