"""Many commands in one process, which is quicker than one process a command: `python -m fuzz.session`.

Reads a JSON list of arguments a line, answers `[exit code, stdout, stderr, peak bytes]` a line.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

from command import ENVIRONMENT

from anima_batch import cli

SECONDS = 60  # a bound on what never ends, wide for a busy machine
MEGABYTES = 1000


class Session:
    """A process that runs commands in the folder that it is told, within bounds of time and memory."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "fuzz.session"]
        self._process = subprocess.Popen(
            command, env=ENVIRONMENT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, folder: Path, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; fails for a command that does not keep within the bounds or raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watch = threading.Timer(SECONDS, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps([str(folder), *arguments]) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            watch.cancel()
        assert answer, f"{arguments}: ended with {self._process.wait()}"
        code, out, errors, peak = json.loads(answer)
        assert peak < MEGABYTES << 20, f"{peak >> 20} MB"
        return code, out, errors


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        folder, *sys.argv[1:] = json.loads(line)
        out, errors = io.StringIO(), io.StringIO()
        os.chdir(folder)
        code = _call(out, errors)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        print(json.dumps([code, out.getvalue(), errors.getvalue(), peak]), file=answers, flush=True)


def _call(out: io.StringIO, errors: io.StringIO) -> int:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            cli.main()
        except SystemExit as ended:
            return int(ended.code or 0)


if __name__ == "__main__":
    main()
