"""The parent's side of one child process: start it, ask it with a deadline, name how it ended."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from multiprocessing.connection import Connection

from anima_batch.backends.printed import PrintedFile
from anima_batch.errors import WorkerError
from anima_batch.worker.memory import Memory, read_memory
from anima_batch.worker.messages import Answer, Call, Failure, WorkerFault

# As `python -m anima_batch.worker`, but with the parent's module search path: -m would put the current folder first,
# and a workspace may hold a folder of any name.
_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[3:]; from anima_batch.worker.__main__ import main; main()"

_SLICE_SECONDS = 1.0  # the longest single wait
_STALL_SECONDS = 60  # for the rest of a message that has begun
_END_SECONDS = 15.0  # for a process to end by itself after its last answer, or after SIGKILL

_REASONS = {
    "SIGKILL": ", most likely for want of memory",
    "SIGSEGV": ", a fault in the runtime or its driver",
    "SIGBUS": ", a fault in the runtime, its driver or a file that was cut short",
}


class WorkerProcess:
    """A running child; `output` holds the last of what it and its libraries printed."""

    def __init__(self) -> None:
        self._printed = PrintedFile()
        try:
            self._process, self._connection = _spawn(self._printed)
        except WorkerError:
            self._printed.close()
            raise
        self._last_words: str | None = None  # once it is gone
        self._memory = Memory(None, None)
        self._looked = -math.inf

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """The last of what it printed."""
        return self._printed.read_end().strip() if self._last_words is None else self._last_words

    def ask(self, call: Call, seconds: float) -> Answer | Failure | None:
        """The reply, or None when none came in time; raises WorkerFault when the process dies.

        After either the process is gone.
        """
        self._look()
        try:
            self._connection.send(call)
            reply = self._connection.recv() if self._wait(seconds) else None
        except BlockingIOError:  # half a message, then silence
            reply = None
        except (EOFError, OSError):
            raise WorkerFault("worker", self._name_death(), self.output) from None
        if reply is None:
            self.kill()
        assert reply is None or isinstance(reply, Answer | Failure)
        return reply

    def close(self) -> None:
        """Let it release its graphs and end; kill it if it does not."""
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it at once, if it has not ended yet; raises WorkerError for a process that even SIGKILL does not end."""
        if self._last_words is not None:
            return
        self._process.kill()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise WorkerError(
                f"worker: process {self.pid} cannot be ended, it hangs in a driver: restart the machine, "
                "then run the same command again"
            ) from error
        self._last_words = self.output
        self._connection.close()
        self._printed.close()

    def _wait(self, seconds: float) -> bool:
        """Whether a reply begins within so many seconds, in which this process was awake itself.

        A wait that took longer than asked was a stopped process or a sleeping machine, no fault of the child's.
        """
        left = seconds
        while left > 0:
            asked, before = min(left, _SLICE_SECONDS), time.monotonic()
            if self._connection.poll(asked):
                return True
            left -= min(asked, time.monotonic() - before)
            self._look()
        return False

    def _look(self) -> None:
        """Keep the memory figures for the case of its death and bound what it printed, at most once a second.

        The figures take as long as a small message.
        """
        if (now := time.monotonic()) - self._looked >= _SLICE_SECONDS:
            self._looked, self._memory = now, read_memory(self.pid)
            self._printed.trim()

    def _name_death(self) -> str:
        """How the process ended, with the memory figures before and the last line that it printed."""
        before = self._memory
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        self.kill()
        last = self.output.splitlines()[-1:]
        words = f'; it last printed "{last[0].strip()}"' if last else ""
        if code is None:
            return f"the worker process closed its connection{words}"
        if code >= 0:
            return f"the worker process ended with exit code {code}{words}"
        return f"the worker process was ended by {_name_signal(-code)} ({before}){words}"


def _name_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
    return name + _REASONS.get(name, "")


def _spawn(printed: PrintedFile) -> tuple[subprocess.Popen[bytes], Connection]:
    """The child and the connection to it; raises WorkerError.

    Neither Python nor C keeps back what it prints (-u): a crash would take it along.
    SIGINT and SIGTERM stay blocked in the child until it ignores them: a terminal's Ctrl-C and a service manager's stop
    reach the whole group, and the parent decides what they mean. In the group it stays, so that a kill of the group or
    Ctrl-Z reaches it.
    """
    ours, theirs = socket.socketpair()
    patience = struct.pack("@ll", _STALL_SECONDS, 0)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
    search_path = [entry or os.getcwd() for entry in sys.path]
    command = [sys.executable, "-u", "-c", _BOOTSTRAP, str(theirs.fileno()), str(os.getpid()), *search_path]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        process = subprocess.Popen(  # noqa: S603 - the interpreter that runs this
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed.descriptor,
            stderr=printed.descriptor,
            close_fds=True,
            pass_fds=(theirs.fileno(),),
            # onnxruntime's own wheels for Linux (1.29 and later) report to their maker otherwise.
            env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
        )
    except OSError as error:
        ours.close()
        raise WorkerError(f"worker: {sys.executable} cannot be started: {error.strerror}") from error
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process, Connection(ours.detach())
