"""The child process: it has the model and nothing else, and answers one request after the other."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STOPS = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    """Serve the descriptor of the first argument for as long as the process of the second one lives."""
    _end_with_parent(int(sys.argv[2]))
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    from anima_batch.worker.serving import serve  # noqa: PLC0415 - the runtimes take a second; the above must not

    with Connection(int(sys.argv[1])) as connection:
        serve(connection, os.environ.get("ANIMA_BATCH_FAULTS", ""))
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do, and a runtime's own clean-up at exit has nobody to tell of its crash


def _end_with_parent(parent: int) -> None:
    """Die with the parent, however it dies; it may have died before this."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
