"""The ways of cutting a job short by name, each run in a process of its own."""

from __future__ import annotations

import importlib
import signal
import sys
import tempfile
from pathlib import Path

from crash.report import Method, Result, Scale
from crash.scenes import scratch_folder

METHODS = {
    "model": "crash.model",
    "strace": "crash.injection",
    "block-log": "crash.block_log",
    "virtual-machine": "crash.virtual_machine",
}


def measure_one(name: str, share: float, seed: int) -> list[Result]:
    """The results of one method, each told on stderr as it comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    method: Method = importlib.import_module(METHODS[name]).measure
    results = []
    with tempfile.TemporaryDirectory(prefix="crash-", dir=scratch_folder()) as scratch:
        for result in method(Scale(share, seed, Path(scratch))):
            verdict = f"{result.bad} bad of {result.states}, controls {result.caught}/{len(result.controls)}"
            print(
                f"{result.method}, {result.variant}: {verdict}",
                *result.examples,
                sep="\n  ",
                file=sys.stderr,
                flush=True,
            )
            results.append(result)
    return results
