"""Wall time and peak memory of whole commands, medians of five: the figures of measurements.md."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("anima-batch"))
BIG_JOB = """schema_version = 1
max_images = 100000
[matrix]
prompt = ["a red house", "an owl at night"]
seed = ["1..12500"]
steps = [20, 28]
policy = ["full", "spectrum"]
"""


def measure(name: str, *arguments: str, runs: int = 5) -> None:
    """Print the median and the largest of the runs after one that warms the caches."""
    seconds, peaks = [], []
    for _ in range(runs + 1):
        started = time.perf_counter()
        process = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - started)
        peaks.append(usage.ru_maxrss / 1024)
        assert status == 0, f"{name}: wait status {status}"
    middle, most = statistics.median(seconds[1:]), max(seconds[1:])
    print(f"{name:<40} {middle:6.2f} s (at most {most:.2f} s), peak {max(peaks):4.0f} MiB")


def main() -> None:
    """Everything in a workspace of its own."""
    demo = (Path(__file__).parents[1] / "jobs/demo.toml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("jobs").mkdir()
        Path("jobs/demo.toml").write_text(demo, encoding="utf-8")
        Path("jobs/big.toml").write_text(BIG_JOB, encoding="utf-8")
        measure("--help", "--help")
        measure("plan, 100,000 images", "plan", "jobs/big.toml")
        started = time.perf_counter()
        subprocess.run([COMMAND, "run", "jobs/demo.toml"], check=True, capture_output=True)
        print(f"{'run jobs/demo.toml':<40} {time.perf_counter() - started:6.2f} s")
        measure("run jobs/demo.toml again", "run", "jobs/demo.toml")
        measure("audit of its folder", "audit", "outputs/demo")


if __name__ == "__main__":
    main()
