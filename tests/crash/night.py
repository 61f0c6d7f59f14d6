"""`python -m crash.night`: a night in fast motion, hundreds of images under random faults, and what is left of it.

Runtimes that fail in every way, a model's process and a whole run that are killed, a disk that is full for a while. The
run is started again as a service manager would. In the morning every image must be done with the right bits or honestly
failed, and the memory and the descriptors of both processes flat.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from command import COMMAND, Workspace

from crash.jobs import JOB, make_tiny_set, make_workspace
from crash.mounts import mount, unmount

STEPS = 3
CURED = ("error_code", "none", "wrong_shape", "nan", "exception", "out_of_memory", "hang", "segfault", "signal", "exit")
LASTING = ("error_code", "wrong_shape", "nan", "exception", "segfault")
FAULTY_SHARE = 0.15  # of the images; a tenth of those never get well
SAMPLE_SECONDS = 0.1
STEADY_SAMPLES = 100  # a process seen for less has spent much of its life opening what it needs
GROWN_SAMPLES = 600  # in its first minute a run has not yet met each kind of fault for the first time
RESTART_SECONDS = 0.5
QUIET_BYTES = 2 << 20  # of growth that is no growth: what an allocator keeps for itself
DISK_BYTES_PER_IMAGE = 100_000  # a little more than the check before a run asks for
MOST_STARTS = 200


@dataclass(frozen=True)
class Sample:
    """One look at a process."""

    seconds: float
    pid: int
    resident: int
    descriptors: int


@dataclass
class Watch:
    """What was seen of the run and of its worker."""

    parents: list[Sample] = field(default_factory=list)
    children: list[Sample] = field(default_factory=list)

    def look(self, pid: int) -> psutil.Process | None:
        """Sample the run and its worker, which is returned."""
        try:
            parent = psutil.Process(pid)
            self.parents.append(_sample(parent))
            for child in parent.children():
                self.children.append(_sample(child))
                return child
        except (psutil.Error, OSError):  # it has just ended
            pass
        return None


@dataclass(frozen=True)
class Morning:
    """What the night left."""

    images: int
    seed: int
    faults: int
    done: int
    failed: int
    starts: int
    exit_codes: dict[str, int]
    kills: int
    full_disks: int
    seconds: float
    parent_growth_bytes: int
    child_growth_bytes: int
    problems: tuple[str, ...]


def main() -> int:
    """Run a night and print what it left; exit 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="crash.night", description=__doc__)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--seed", type=int, default=None, help="of what goes wrong; a random one")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"{arguments.images} images, seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="night-") as folder:
        morning = spend_night(Path(folder), arguments.images, seed)
    content = dataclasses.asdict(morning)
    if arguments.json:
        print(json.dumps(content, indent=2))
    else:
        for key, value in content.items():
            print(f"{key:<20} {value}")
    return 1 if morning.problems else 0


def spend_night(folder: Path, images: int, seed: int) -> Morning:
    """A whole night in the folder; its problems are empty when all promises held."""
    started = time.monotonic()
    model_set = make_tiny_set(folder / "set")
    calm = make_workspace(folder / "calm", model_set, _job(images))
    calm.run("run", JOB)
    disk = folder / "disk"
    disk.mkdir()
    is_mounted = os.geteuid() == 0
    if is_mounted:
        mount("tmpfs", disk, "tmpfs", f"size={(8 << 20) + images * DISK_BYTES_PER_IMAGE}")
    try:
        night = Night(make_workspace(disk / "night", model_set, _job(images)), folder / "stderr", images, seed)
        night.run(fill_disk=is_mounted)
        return night.judge(calm.results(), seed, time.monotonic() - started)
    finally:
        if is_mounted:
            unmount(disk, lazily=True)


class Night:
    """The faults, the run that meets them, and what happens to it from outside."""

    def __init__(self, workspace: Workspace, stderr: Path, images: int, seed: int) -> None:
        self._workspace = workspace
        self._stderr = stderr
        self._images = images
        self._random = random.Random(seed)
        self._watch = Watch()
        self._codes: list[int] = []
        self._kills = self._full_disks = 0
        self._lasting: set[int] = set()
        self._faults = self._draw_faults()
        workspace.make_faults(*self._faults)

    def run(self, *, fill_disk: bool) -> None:
        """Start the job again until it says that nothing is left."""
        filler = self._workspace.folder / "filler" if fill_disk else None
        while not self._codes or self._codes[-1] not in (0, 1):
            if len(self._codes) == MOST_STARTS:
                said = self._stderr.read_text(errors="replace").splitlines()[-3:]
                raise RuntimeError(f"no end after {MOST_STARTS} starts: {self._codes[-20:]}: {said}")
            if self._codes:
                time.sleep(RESTART_SECONDS)
            self._codes.append(self._start_once(filler))

    def judge(self, calm: dict[str, Any], seed: int, seconds: float) -> Morning:
        """What is there against what should be."""
        manifests = self._workspace.manifests()
        failed = {stem for stem, manifest in manifests.items() if manifest["status"] == "failed"}
        wrong = {stem for stem in failed if manifests[stem]["request"]["seed"] not in self._lasting}
        same = {stem: _result(manifests[stem]) == calm[stem] for stem in manifests.keys() - failed}
        parent_growth = _growth_of_longest(self._watch.parents)
        child_growth = _growth([max(life, key=lambda seen: seen.resident) for life in _lives(self._watch.children)])
        checks = {
            f"{self._images - len(manifests)} images have no manifest": len(manifests) != self._images,
            f"failed without a lasting fault: {sorted(wrong)}": bool(wrong),
            f"{len(self._lasting) - len(failed)} lasting faults failed no image": len(failed) != len(self._lasting),
            f"other bits: {sorted(stem for stem, equal in same.items() if not equal)}": not all(same.values()),
            "verify found a difference": self._workspace.run("verify", JOB, check=None).returncode != 0,
            f"the run grew by {parent_growth} bytes": parent_growth > 0,
            f"the workers grew by {child_growth} bytes": child_growth > 0,
            "the run's descriptors grew": _descriptors_grew(self._watch.parents),
            "the workers' descriptors grew": _descriptors_grew(self._watch.children),
            "a traceback was shown": "Traceback" in self._stderr.read_text(errors="replace"),
        }
        return Morning(
            images=self._images,
            seed=seed,
            faults=len(self._faults),
            done=len(same),
            failed=len(failed),
            starts=len(self._codes),
            exit_codes={str(code): self._codes.count(code) for code in sorted(set(self._codes))},
            kills=self._kills,
            full_disks=self._full_disks,
            seconds=seconds,
            parent_growth_bytes=parent_growth,
            child_growth_bytes=child_growth,
            problems=tuple(problem for problem, found in checks.items() if found),
        )

    def _draw_faults(self) -> list[dict[str, Any]]:
        seeds = self._random.sample(range(1, self._images + 1), max(4, round(self._images * FAULTY_SHARE)))
        self._lasting = set(seeds[: max(1, len(seeds) // 10)])
        faults = []
        for seed in seeds:
            lasting = seed in self._lasting
            kind = self._random.choice(LASTING if lasting else CURED)
            amount = {"signal": self._random.choice((signal.SIGKILL, signal.SIGABRT, signal.SIGBUS)), "exit": 3}.get(
                kind, 0
            )
            fault = {"kind": kind, "seed": seed, "step": self._random.randint(1, STEPS), "amount": amount}
            ledger = str(self._stderr.with_name(f"fault-{seed}"))  # not on the disk that is full at times
            faults.append(fault if lasting else {**fault, "times": 1, "ledger": ledger})
        return faults

    def _start_once(self, filler: Path | None) -> int:
        """One run of the job, disturbed from outside at random moments; its exit code."""
        with self._stderr.open("a") as stderr:
            process = subprocess.Popen(
                [*COMMAND, "run", JOB], cwd=self._workspace.folder, env=self._workspace.environment,
                stdout=subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip
        try:
            self._accompany(process, filler)
        finally:
            process.kill()
            process.wait()
        if filler is not None:
            filler.unlink(missing_ok=True)
        return process.returncode

    def _accompany(self, process: subprocess.Popen[bytes], filler: Path | None) -> None:
        """Look at the run until it ends, and disturb it now and then."""
        disturb_at = time.monotonic() + self._random.uniform(2, 6)
        while process.poll() is None:
            child = self._watch.look(process.pid)
            if time.monotonic() >= disturb_at:
                self._disturb(process, child, filler)
                disturb_at = time.monotonic() + self._random.uniform(3, 9)
            time.sleep(SAMPLE_SECONDS)

    def _disturb(self, process: subprocess.Popen[bytes], child: psutil.Process | None, filler: Path | None) -> None:
        """Kill the worker mostly, at times the run, or fill the disk or free it again."""
        choices: list[Callable[[], None]] = [lambda: _kill(child)] * 4
        choices += [process.kill, process.terminate]
        if filler is not None:
            choices += [lambda: self._fill_or_free(filler)] * 3
        self._random.choice(choices)()
        self._kills += 1

    def _fill_or_free(self, filler: Path) -> None:
        if filler.exists():
            filler.unlink()
            return
        self._full_disks += 1
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
            while stream.write(bytes(1 << 20)):  # to the last block, while the run writes too
                pass


def _job(images: int) -> str:
    return f"""schema_version = 1
model_set = "tiny"
[run]
threads = 1
deadline_seconds = 2
[defaults]
prompt = "a boat"
steps = {STEPS}
width = 64
height = 64
[matrix]
seed = ["1..{images}"]
"""


def _result(manifest: dict[str, Any]) -> tuple[str, str, list[str]]:
    """As `Workspace.results`."""
    steps = [step["latents_xxh3"] for step in manifest["steps"]]
    return manifest["latents"]["sha256"], manifest["image"]["pixel_sha256"], steps


def _kill(process: psutil.Process | None) -> None:
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _sample(process: psutil.Process) -> Sample:
    return Sample(time.monotonic(), process.pid, process.memory_info().rss, process.num_fds())


def _lives(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each process that was seen more than a few times, without those of its start."""
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.pid, []).append(sample)
    return [life[len(life) // 4 :] for life in lives.values() if len(life) >= 8]


def _growth_of_longest(samples: Sequence[Sample]) -> int:
    longest = max(_lives(samples), key=len, default=[])
    return _growth(longest) if len(longest) >= GROWN_SAMPLES else 0


def _growth(samples: Sequence[Sample]) -> int:
    """Bytes that a line through the samples rises over their time; 0 where that is within their noise."""
    if len(samples) < 4:
        return 0
    times, sizes = [sample.seconds for sample in samples], [sample.resident for sample in samples]
    slope, start = statistics.linear_regression(times, sizes)
    noise = statistics.pstdev(size - (start + slope * moment) for moment, size in zip(times, sizes, strict=True))
    growth = slope * (times[-1] - times[0])
    doubt = 4 * math.sqrt(12 / len(samples))  # four standard errors of a slope through samples evenly spread
    return round(growth) if growth > max(max(2, doubt) * noise, QUIET_BYTES) else 0


def _descriptors_grew(samples: Sequence[Sample]) -> bool:
    """Whether the processes of the night's end have more open than those of its start."""
    counts = [statistics.median(sample.descriptors for sample in life) for life in _lives(samples)]
    third = len(counts) // 3
    within = max((_rise(life) for life in _lives(samples) if len(life) >= STEADY_SAMPLES), default=0)
    over = statistics.median(counts[-third:]) - statistics.median(counts[:third]) if third else 0
    return max(within, over) > 1  # one file may be open at the moment of a look


def _rise(life: Sequence[Sample]) -> float:
    third = len(life) // 3
    counts = [sample.descriptors for sample in life]
    return statistics.median(counts[-third:]) - statistics.median(counts[:third]) if third else 0


if __name__ == "__main__":
    sys.exit(main())
