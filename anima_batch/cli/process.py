"""The process round a command: its streams, its signals and its exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn, TextIO

from anima_batch.cli.commands import app
from anima_batch.errors import AnimaBatchError, StorageError, UsageError


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line on stderr and its exit code."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(128 + signal.SIGINT))  # `run` has its own while it runs
    sys.stdout = _open_stream(sys.stdout)
    sys.stderr = _open_stream(sys.stderr)
    try:
        code = _call()
        sys.stdout.flush()
    except OSError as error:
        code = _report_os_error(error)
    sys.exit(code)


def _open_stream(stream: TextIO | None) -> TextIO:
    """The stream, able to show any name; nothing where it was closed before the start."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def _call() -> int:
    try:
        app()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except AnimaBatchError as error:
        from anima_batch.console import results

        results.show_errors(error.lines)
        return error.exit_code
    return 0


def _report_os_error(error: OSError) -> int:
    """What the system refused outside the files that a command looks after: a broken pipe, a name that is too long."""
    if error.errno == errno.EPIPE:  # whoever read stdout has seen enough; what is left in the buffer has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    from anima_batch.console import results

    results.show_errors([f"{error.filename or 'stdout'}: {error.strerror or error}"])
    return UsageError.exit_code if error.errno == errno.ENAMETOOLONG else StorageError.exit_code
