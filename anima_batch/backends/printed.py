"""What C libraries print during a call: they tell the cause nowhere else."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

KEPT_BYTES = 16 << 10  # the end of what was printed

_JOIN_SECONDS = 5.0  # a process that the library started may keep the pipe open for ever


class PrintedText:
    """A context in which descriptors 1 and 2 are watched; `text` is what came through them, complete after its end.

    All of it goes on to where it would have gone, at once: it may be the last that is heard of the process. A thread
    does so, and needs the interpreter's lock: a library that held it and printed more than a pipe's 64 KiB would hang.
    Not for two threads at a time: a process has these descriptors once.
    """

    def __enter__(self) -> PrintedText:
        self._printed = b""
        _flush()
        self._saved = [(number, os.dup(number)) for number in (1, 2)]
        reader, writer = os.pipe()
        self._thread = threading.Thread(target=self._pass_on, args=(reader, self._saved[1][1]), daemon=True)
        self._thread.start()
        for number, _ in self._saved:
            os.dup2(writer, number)
        os.close(writer)
        return self

    def __exit__(self, *error: object) -> None:
        _flush()
        for number, saved in self._saved:
            os.dup2(saved, number)
        self._thread.join(_JOIN_SECONDS)
        for _, saved in self._saved:
            os.close(saved)

    @property
    def text(self) -> str:
        """The end of what was printed."""
        return self._printed.decode(errors="replace")

    def _pass_on(self, reader: int, onward: int) -> None:
        with open(reader, "rb", buffering=0) as stream:
            while block := stream.read(KEPT_BYTES):
                self._printed = (self._printed + block)[-KEPT_BYTES:]
                try:
                    os.write(onward, block)
                except OSError:  # whoever read it is gone; the call goes on all the same
                    continue


def _flush() -> None:
    """Empty the buffers of Python and of the C library, so that no text turns up on the wrong side."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
