"""What a fleet of one board costs over running alone: the same job both ways, by turns, on loopback."""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "anima_batch"]
# One thread computes, as on a board whose driver and scheduler are other machines: they have the other processor here.
JOB = """schema_version = 1
[run]
threads = 1
[defaults]
prompt = "a red house"
width = 192
height = 128
steps = {steps}
[matrix]
seed = ["1..{images}"]
"""


def main() -> None:
    """Print seconds an image both ways, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    alone, fleet = [], []
    with tempfile.TemporaryDirectory() as name, one_board(Path(name)) as address:
        for number in range(arguments.rounds):
            job = JOB.format(steps=arguments.steps, images=arguments.images)
            alone.append(measure(Path(name) / f"alone-{number}", job))
            fleet.append(measure(Path(name) / f"fleet-{number}", job, "--dask", address))
            print(f"round {number + 1}: alone {alone[-1]:.3f} s, fleet {fleet[-1]:.3f} s an image", file=sys.stderr)
    result = {
        "alone_seconds": statistics.median(alone),
        "fleet_seconds": statistics.median(fleet),
        "ratio": statistics.median(theirs / own for own, theirs in zip(alone, fleet, strict=True)),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        print(", ".join(f"{key} {value:.4f}" for key, value in result.items()))


@contextmanager
def one_board(folder: Path) -> Iterator[str]:
    """A scheduler and a board; gives the scheduler's address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    serve = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--no-dashboard"]
    board = folder / "board"
    board.mkdir()
    join = [*COMMAND, "fleet-worker", address, "--workspace", str(board), "--name", "one"]
    processes = [
        subprocess.Popen([*serve, "--port", str(port)], stderr=subprocess.DEVNULL),  # noqa: S603
        subprocess.Popen(join, stderr=subprocess.DEVNULL),  # noqa: S603
    ]
    try:
        yield address
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def measure(folder: Path, job: str, *options: str) -> float:
    """Seconds an image, from the first one's end to the last one's: without what happens once a run."""
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs/job.toml").write_text(job)
    moments = []
    command = [*COMMAND, "run", "jobs/job.toml", *options]
    silent, read = subprocess.DEVNULL, subprocess.PIPE
    process = subprocess.Popen(command, cwd=folder, stdout=silent, stderr=read)  # noqa: S603
    assert process.stderr is not None
    for line in process.stderr:
        if b"done in" in line:
            moments.append(time.perf_counter())
    if process.wait():
        raise SystemExit(f"the run ended with {process.returncode}")
    return (moments[-1] - moments[0]) / (len(moments) - 1)


if __name__ == "__main__":
    main()
