"""A long campaign of hostile files against everything that reads: `python -m fuzz.campaign --inputs 100000`.

Each kind of file has a process of its own, with a bound on its memory and on the time of each input. Where atheris is
installed half of the inputs are steered by coverage, through the same strategies. Prints one table; `--json` for
scripts. An input that fails is kept, and `--again FILE --target NAME` feeds it once more.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from command import ENVIRONMENT
from fuzz.targets import TARGETS, Target, feed
from fuzz.world import World, make_world
from hypothesis import HealthCheck, Phase, given, seed, settings

SECONDS = 60  # for one input, after which the process says where it hangs and ends
MEMORY_BYTES = 3 << 30  # of address space
ENGINES = ("hypothesis", "atheris")


@dataclass
class Tally:
    """What came of the inputs of one kind of file."""

    target: str
    engine: str
    inputs: int = 0
    accepted: int = 0
    failures: int = 0
    slowest_ms: float = 0.0
    seconds: float = 0.0
    peak_mb: int = 0

    def add(self, *, accepted: bool, seconds: float) -> None:
        self.inputs += 1
        self.accepted += accepted
        self.slowest_ms = max(self.slowest_ms, 1000 * seconds)
        self.seconds += seconds


class Campaign:
    """Feeds one target, counts, and keeps what fails; `done` is called with the tally now and then."""

    def __init__(self, target: Target, world: World, tally: Tally, failures: Path) -> None:
        self.target = target
        self.world = world
        self.tally = tally
        self._failures = failures
        self._known: set[str] = set()

    def feed(self, data: bytes) -> None:
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        started = time.perf_counter()
        accepted = False
        try:
            accepted = feed(self.target, self.world, data)
        except Exception as error:  # whatever it is, it is what the campaign looks for
            self._keep(data, error)
        faulthandler.cancel_dump_traceback_later()
        self.tally.add(accepted=accepted, seconds=time.perf_counter() - started)

    def _keep(self, data: bytes, error: Exception) -> None:
        """One input of each place that fails."""
        place = traceback.extract_tb(error.__traceback__)[-1]
        name = f"{self.target.name}-{Path(place.filename).stem}-{place.lineno}-{type(error).__name__}"
        self.tally.failures += 1
        if name not in self._known:
            self._known.add(name)
            self._failures.mkdir(parents=True, exist_ok=True)
            (self._failures / name).write_bytes(data)
            (self._failures / f"{name}.txt").write_text("".join(traceback.format_exception(error)), errors="replace")


def run_target(name: str, engine: str, inputs: int, start: int, failures: Path) -> None:
    """Feed so many inputs and print the tally as JSON, the last line being the whole."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(TARGETS[name], make_world(Path(folder) / "workspace"), Tally(name, engine), failures)
        engines: dict[str, Callable[[Campaign, int, int], None]] = {
            "hypothesis": _draw_freely,
            "atheris": _steer_by_coverage,
        }
        engines[engine](campaign, inputs, start)
        _print_tally(campaign.tally)


def _print_tally(tally: Tally) -> None:
    tally.peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(asdict(tally)), file=sys.__stdout__, flush=True)


def _draw_freely(campaign: Campaign, inputs: int, start: int) -> None:
    @seed(start)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(campaign.target.inputs(campaign.world))
    def draw(data: bytes) -> None:
        campaign.feed(data)

    while campaign.tally.inputs < inputs:  # Hypothesis stops early where it has seen all of a small choice
        before = campaign.tally.inputs
        draw()
        if campaign.tally.inputs == before:
            break


def _steer_by_coverage(campaign: Campaign, inputs: int, start: int) -> None:
    import atheris  # noqa: PLC0415 - not for every Python and machine

    atheris.instrument_all()

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(campaign.target.inputs(campaign.world))
    def draw(data: bytes) -> None:
        campaign.feed(data)
        if campaign.tally.inputs % 50 == 0:  # the fuzzer ends the process, without a word
            _print_tally(campaign.tally)

    arguments = [sys.argv[0], f"-atheris_runs={inputs}", f"-seed={start}", "-max_len=8192", "-verbosity=0"]
    atheris.Setup(arguments, draw.hypothesis.fuzz_one_input)
    atheris.Fuzz()


def run_all(names: list[str], inputs: int, start: int, failures: Path) -> list[Tally]:
    """The tallies of a process for each target and engine."""
    engines = ENGINES if importlib.util.find_spec("atheris") else ENGINES[:1]
    share = -(-inputs // (len(names) * len(engines)))
    tallies = []
    for engine in engines:
        for name in names:
            command = [sys.executable, "-m", "fuzz.campaign", "--one", engine, "--target", name]
            command += ["--inputs", str(share), "--seed", str(start), "--failures", str(failures)]
            ended = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
            lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
            tally = Tally(**json.loads(lines[-1])) if lines else Tally(name, engine)
            if ended.returncode:
                tally.failures += 1
                print(f"{name}, {engine}: the process ended with {ended.returncode}", file=sys.stderr)
            tallies.append(tally)
            print(_row(tally), file=sys.stderr)
    return tallies


def _row(tally: Tally) -> str:
    refused = tally.inputs - tally.accepted
    return (
        f"{tally.target:<12} {tally.engine:<12} {tally.inputs:>8} {tally.accepted:>9} {refused:>9} "
        f"{tally.failures:>9} {tally.slowest_ms:>11.0f} {tally.peak_mb:>8} {tally.seconds:>8.0f}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.campaign", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all kinds together")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="one kind of file; repeat for more")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="where failing inputs are kept")
    parser.add_argument("--again", type=Path, help="feed this file to --target, and show what happens")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.target or list(TARGETS)
    if options.again:
        with tempfile.TemporaryDirectory() as folder:
            accepted = feed(TARGETS[names[0]], make_world(Path(folder) / "workspace"), options.again.read_bytes())
        print("accepted" if accepted else "refused")
        return 0
    if options.one:
        run_target(names[0], options.one, options.inputs, options.seed, options.failures)
        return 0
    tallies = run_all(names, options.inputs, options.seed, options.failures)
    failed = sum(tally.failures for tally in tallies)
    if options.json:
        result = {"seed": options.seed, "inputs": sum(tally.inputs for tally in tallies), "failures": failed}
        print(json.dumps({**result, "targets": [asdict(tally) for tally in tallies]}, indent=2))
    else:
        print("file         engine         inputs  accepted   refused  failures  slowest ms  peak MB  seconds")
        print("\n".join(map(_row, tallies)))
        print(f"{sum(tally.inputs for tally in tallies)} inputs, {failed} failures, seed {options.seed}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
