"""`python -m crash`: cut jobs short in every way and print one table; exit 1 if a promise was broken."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import signal
import sys
import tempfile
from pathlib import Path

from crash.report import Method, Result, Scale, format_table, result_json
from crash.scenes import scratch_folder

METHODS = {
    "model": "crash.model",
    "strace": "crash.injection",
    "block-log": "crash.block_log",
    "virtual-machine": "crash.virtual_machine",
}


def main() -> int:
    """Run the methods that were asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="how much of the whole to do (1.0)")
    parser.add_argument("--seed", type=int, default=None, help="of what is drawn; a random one")
    parser.add_argument("--only", choices=METHODS, action="append", help="these methods; all")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that disks are unmounted
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"share {arguments.share}, seed {seed}", file=sys.stderr, flush=True)
    results: list[Result] = []
    for name in arguments.only or METHODS:
        results += measure_one(name, arguments.share, seed)
    passed = all(result.passed for result in results)
    if arguments.json:
        lines = [result_json(result) for result in results]
        print(json.dumps({"share": arguments.share, "seed": seed, "passed": passed, "results": lines}, indent=2))
    else:
        print(format_table(results))
    return 0 if passed else 1


def measure_one(name: str, share: float, seed: int) -> list[Result]:
    """The results of one method, each told on stderr as it comes."""
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


if __name__ == "__main__":
    sys.exit(main())
