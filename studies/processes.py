"""Commands in processes of their own, with the time and the memory that they took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_POLL_SECONDS = 0.02
_RSS_UNIT = 1024  # bytes of ru_maxrss on Linux


@dataclass(frozen=True)
class Ended:
    """An ended process: its exit code, wall time, the most memory it had, and its stdout."""

    code: int
    seconds: float
    peak_bytes: int
    output: str


def run_python(words: Sequence[str | Path], folder: Path) -> Ended:
    """Runs `python WORDS` in a folder; raises SystemExit when it fails, which says why on stderr itself."""
    started = time.perf_counter()
    process = _start(words, folder)
    assert process.stdout is not None
    output = process.stdout.read()
    ended = _wait(process, started, output)
    if ended.code != 0:
        raise SystemExit(f"{' '.join(map(str, words))}: ended with exit code {ended.code}")
    return ended


def run_until_killed(words: Sequence[str | Path], folder: Path, events: Path, step: int) -> Ended:
    """Runs an `anima-batch run --events EVENTS` and kills it with SIGKILL half a step after `step` is durable."""
    started = time.perf_counter()
    process = _start(words, folder)
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if (seconds := _find_step(events, step)) is not None:
            time.sleep(seconds / 2)
            process.kill()
            break
        time.sleep(_POLL_SECONDS)
    return _wait(process, started, "")


def _start(words: Sequence[str | Path], folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own


def _wait(process: subprocess.Popen[str], started: float, output: str) -> Ended:
    """The end of a process that nobody waited for yet."""
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)  # so that nothing waits for it again
    assert process.stdout is not None
    process.stdout.close()
    return Ended(process.returncode, seconds, usage.ru_maxrss * _RSS_UNIT, output)


def _find_step(events: Path, step: int) -> float | None:
    """How long the step took, once the events tell that it is durable."""
    if events.is_file():
        for line in events.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == "StepDone" and event["report"]["index"] == step:
                return float(event["report"]["seconds"])
    return None
