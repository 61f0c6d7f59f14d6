"""How far the ETA after two images is from the time that the rest of a mixed job then takes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = (sys.executable, "-m", "anima_batch")
AXES = {
    "policy": 'policy = ["full", "spectrum", "thrifty"]',
    "steps": "steps = [12, 20, 28]",
    "size": "width = [128, 192]\nheight = [128, 128]",
    "prompt": 'prompt = ["a red house", "an owl at night"]',
}
ORDERS = (  # the last axis is the fastest: the two images that are measured differ in it alone
    ("prompt", "policy", "steps", "size"),
    ("prompt", "size", "steps", "policy"),
    ("size", "policy", "prompt", "steps"),
    ("size", "policy", "steps", "prompt"),
)
REST = """
zip = [["width", "height"]]
[defaults]
seed = 1
[policy.thrifty]
kind = "guidance_reuse"
"""


def main() -> None:
    """One line an order: estimated, taken, and the difference."""
    for order in ORDERS:
        with tempfile.TemporaryDirectory() as folder:
            estimated, taken = measure(Path(folder), order)
        error = estimated / taken - 1
        print(f"{' > '.join(order):<36} ETA {estimated:7.2f} s, taken {taken:7.2f} s: {error:+.1%}", flush=True)


def measure(folder: Path, order: tuple[str, ...]) -> tuple[float, float]:
    """The ETA in seconds after two images, and the wall time of the command that makes the rest."""
    lines = "\n".join(AXES[axis] for axis in order)
    (folder / "job.toml").write_text(f"schema_version = 1\n[matrix]\n{lines}{REST}", encoding="utf-8")
    run(folder, "run", "job.toml", "--limit", "2")
    estimated = json.loads(run(folder, "plan", "job.toml", "--json"))["estimated_seconds"]
    started = time.perf_counter()
    run(folder, "run", "job.toml")
    return float(estimated), time.perf_counter() - started


def run(folder: Path, *arguments: str) -> str:
    """What a command prints."""
    command = [*COMMAND, *arguments]
    ended = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S603 - our own
    return ended.stdout


if __name__ == "__main__":
    main()
