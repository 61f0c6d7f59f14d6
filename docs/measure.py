"""Wall time and peak memory of whole commands, medians of five: the figures of measurements.md."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from anima_batch.anima.conditioning import Conditioning
from anima_batch.job import FullPolicy, ImageRequest, RunSpec, SpectrumPolicy
from anima_batch.model_set import find_model_set
from anima_batch.sampling import initial_state
from anima_batch.worker import Deadlines, ModelWorker, Opening
from anima_batch.worker.workbench import Workbench

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


def denoise_seconds(model: Workbench | ModelWorker, request: ImageRequest, conditioning: Conditioning) -> float:
    """Wall time of all steps, without the first one, which opens the graphs."""
    model.prepare(request, conditioning)
    state = model.step(initial_state(request)).state
    started = time.perf_counter()
    while state.step < request.steps:
        state = model.step(state).state
    return time.perf_counter() - started


def measure_worker(rounds: int = 15) -> None:
    """Print how much longer the denoising takes in a worker process than in this one; the rounds alternate."""
    model_set = find_model_set("picture-book", Path())
    opening = Opening(model_set, "onnx", RunSpec())
    width, height = model_set.description.sizes[0]
    shape = (2, model_set.description.text.context_rows, model_set.description.transformer.context_dim)
    conditioning = Conditioning(*np.random.default_rng(1).standard_normal(shape, np.float32))
    bench = Workbench(opening)
    with ModelWorker(opening, Deadlines(600)) as worker:
        for name, policy in {"full": FullPolicy(), "features": SpectrumPolicy(forecast="features")}.items():
            request = ImageRequest(prompt="a", seed=1, width=width, height=height, steps=21, policy=policy)
            here, there = [], []
            for _ in range(rounds + 1):
                here.append(denoise_seconds(bench, request, conditioning))
                there.append(denoise_seconds(worker, request, conditioning))
            one, other = statistics.median(here[1:]), statistics.median(there[1:])
            label = f"20 steps of {name}, {width}x{height}"
            cost = f"{other / one - 1:+.1%}, {(other - one) / 20 * 1e6:+.0f} us a step"
            print(f"{label:<40} {one * 1e3:6.1f} ms in one process, {other * 1e3:6.1f} ms with a worker: {cost}")
    bench.close()


def main() -> None:
    """Everything in a workspace of its own."""
    measure_worker()
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
