"""What C libraries print during a call: they tell the cause nowhere else."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
from collections.abc import Callable, Iterator
from threading import Lock, Thread

KEPT_BYTES = 16 << 10  # the end of what was printed


class PrintedText:
    """The end of what was printed during a call; not `alone` if another call, which may have said it, was under way."""

    def __init__(self) -> None:
        self.alone = True
        self._kept = b""

    def add(self, block: bytes) -> None:
        """Keep the end with what was printed next."""
        self._kept = (self._kept + block)[-KEPT_BYTES:]

    @property
    def text(self) -> str:
        """What was kept; complete once the call has ended."""
        return self._kept.decode(errors="replace")


class Printing:
    """Watches descriptors 1 and 2, of which a process has one each, for as long as any of its threads listens.

    All that is printed goes on to where it would have gone, at once: it may be the last that is heard of the process. A
    thread does so, and needs the interpreter's lock: a library that held it and printed more than a pipe's 64 KiB would
    hang. Only one object of this kind may listen at a time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._listening: list[PrintedText] = []
        self._tap: _Tap | None = None

    @contextlib.contextmanager
    def listen(self) -> Iterator[PrintedText]:
        """What is printed from here to the context's end, by whichever thread."""
        heard = PrintedText()
        self._begin(heard)
        try:
            yield heard
        finally:
            self._end(heard)

    def _begin(self, heard: PrintedText) -> None:
        _flush()  # never with the lock held: the thread that empties the pipe takes it
        with self._lock:
            if self._tap is None:
                self._tap = _Tap(self.pump)
            if not self._listening:
                self._tap.take()
            self._pass_on(self._tap)
            self._listening.append(heard)
            if len(self._listening) > 1:
                for each in self._listening:
                    each.alone = False

    def _end(self, heard: PrintedText) -> None:
        _flush()
        with self._lock:
            assert self._tap is not None
            self._pass_on(self._tap)
            self._listening.remove(heard)
            if not self._listening:
                self._tap.give_back()

    def pump(self, tap: _Tap) -> None:
        """Pass on whatever comes, in a thread, for as long as the process lives."""
        while tap.wait():
            with self._lock:
                self._pass_on(tap)

    def _pass_on(self, tap: _Tap) -> None:
        """Everything that lies in the pipe, to all who listen; the lock is held."""
        while block := tap.read():
            for each in self._listening:
                each.add(block)
            tap.write(block)


class _Tap:
    """A pipe that takes the place of descriptors 1 and 2, and the thread that empties it.

    Both stay for good: a call costs no thread. What a process that the library started prints later goes on, too.
    """

    def __init__(self, pump: Callable[[_Tap], None]) -> None:
        self._saved: list[tuple[int, int]] = []
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        Thread(target=pump, args=(self,), daemon=True).start()

    def wait(self) -> bool:
        """Wait until something lies in the pipe."""
        return bool(self._poll.poll())

    def read(self) -> bytes:
        """What lies in the pipe, or nothing."""
        try:
            return os.read(self._reader, KEPT_BYTES)
        except BlockingIOError:
            return b""

    def write(self, block: bytes) -> None:
        """On to where it would have gone to descriptor 2."""
        onward = self._saved[1][1] if self._saved else 2
        with contextlib.suppress(OSError):  # whoever read it is gone; the call goes on all the same
            os.write(onward, block)

    def take(self) -> None:
        """Put the pipe in the descriptors' place."""
        self._saved = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in self._saved:
            os.dup2(self._writer, number)

    def give_back(self) -> None:
        """Make the descriptors what they were."""
        for number, saved in self._saved:
            os.dup2(saved, number)
            os.close(saved)
        self._saved = []


def _flush() -> None:
    """Empty the buffers of Python and of the C library, so that no text turns up on the wrong side."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
