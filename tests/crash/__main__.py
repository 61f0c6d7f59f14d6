"""`python -m crash`: cut jobs short in every way and print one table; exit 1 if a promise was broken."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from crash.methods import METHODS, measure_one
from crash.report import Result, format_table, result_json


def main() -> int:
    """Run the methods that were asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="how much of the whole to do (1.0)")
    parser.add_argument("--seed", type=int, default=None, help="of what is drawn; a random one")
    parser.add_argument("--only", choices=METHODS, action="append", help="these methods; all")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"share {arguments.share}, seed {seed}", file=sys.stderr, flush=True)
    results = measure_all(arguments.only or list(METHODS), arguments.share, seed)
    passed = all(result.passed for result in results)
    if arguments.json:
        lines = [result_json(result) for result in results]
        print(json.dumps({"share": arguments.share, "seed": seed, "passed": passed, "results": lines}, indent=2))
    else:
        print(format_table(results))
    return 0 if passed else 1


def measure_all(names: Sequence[str], share: float, seed: int) -> list[Result]:
    """The results of the methods in their order; two are at work at a time, the longest first."""
    longest_first = sorted(names, key=list(METHODS).index, reverse=True)
    pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    signal.signal(signal.SIGTERM, _stop)
    try:
        found = {name: pool.submit(measure_one, name, share, seed) for name in longest_first}
        return [result for name in names for result in found[name].result()]
    finally:
        pool.shutdown(cancel_futures=True)


def _stop(*_: object) -> None:
    """End the methods too, each of which unmounts its disks and removes its files."""
    for process in multiprocessing.active_children():
        process.terminate()
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
