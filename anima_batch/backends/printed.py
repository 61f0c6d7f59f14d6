"""What C libraries print during a call: they tell the cause nowhere else."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread

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

    All that is printed goes on to where it would have gone, at once: it may be the last that is heard of the process,
    though what is printed in the very instant of a crash may be lost. A thread does so, and needs the interpreter's
    lock: a library that held it and printed more than a pipe's 64 KiB would hang. Only one object of this kind may
    listen at a time.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._listening: list[PrintedText] = []
        self._calls = 0
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
        _flush()
        with self._lock:
            tap = self._tap = self._tap or _Tap(self._hear)
            if self._calls == 0:
                tap.take()
            self._calls += 1
        tap.settle()  # what was printed before is not this call's
        with self._lock:
            self._listening.append(heard)
            if len(self._listening) > 1:
                for each in self._listening:
                    each.alone = False

    def _end(self, heard: PrintedText) -> None:
        _flush()
        assert self._tap is not None
        self._tap.settle()
        with self._lock:
            self._listening.remove(heard)
            self._calls -= 1
            if self._calls == 0:
                self._tap.give_back()

    def _hear(self, block: bytes) -> None:
        """On to where it would have gone to descriptor 2, before all else, and to all who listen."""
        with self._lock:
            assert self._tap is not None
            with contextlib.suppress(OSError):  # whoever read it is gone; the call goes on all the same
                os.write(self._tap.onward, block)
            for each in self._listening:
                each.add(block)


class _Tap:
    """A pipe that takes the place of descriptors 1 and 2, and the thread that empties it.

    Both stay for good: a call costs no thread. What a process that the library started prints later goes on, too. Only
    the thread reads: a mark, which is a number between two zero bytes, tells that it has come so far.
    """

    def __init__(self, hear: Callable[[bytes], None]) -> None:
        self._hear = hear
        self._saved: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._marks: dict[bytes, Event] = {}
        self._reader, self._writer = os.pipe()
        Thread(target=self._pump, daemon=True).start()

    @property
    def onward(self) -> int:
        """The descriptor that 2 was, or is."""
        return self._saved[1][1] if self._saved else 2

    def settle(self) -> None:
        """Wait until all that is in the pipe has been heard."""
        number, passed = b"%d" % next(self._numbers), Event()
        self._marks[number] = passed
        os.write(self._writer, b"\0%s\0" % number)  # as a whole: it is shorter than PIPE_BUF
        passed.wait()

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

    def _pump(self) -> None:
        """Pass on whatever comes, for as long as the process lives."""
        rest = b""
        while block := os.read(self._reader, KEPT_BYTES):
            rest = self._pass_marks(rest + block)

    def _pass_marks(self, data: bytes) -> bytes:
        """Text to whoever hears it, marks to whoever waits for them; the rest is a mark's beginning, or nothing."""
        while data:
            text, zero, after = data.partition(b"\0")
            if text:
                self._hear(text)
            number, end, after_mark = after.partition(b"\0")
            if zero and not end and (not number or number in self._marks or number.isdigit()):
                return zero + number
            if passed := self._marks.pop(number, None) if end else None:
                passed.set()
                after = after_mark
            elif zero:  # the library's own
                self._hear(zero)
            data = after
        return b""


def _flush() -> None:
    """Empty the buffers of Python and of the C library, so that no text turns up on the wrong side."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
