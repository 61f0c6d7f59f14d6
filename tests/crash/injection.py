"""Real runs in which one storage call kills the process or fails, at each call in turn; then a plain run to the end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from command import COMMAND, ENVIRONMENT

from crash.broken_writers import BROKEN, CARELESS
from crash.jobs import JOB, JOBS, make_tiny_set, make_workspace
from crash.oracle import Acknowledged, Golden, judge, recover
from crash.recorder import EVENTS, record
from crash.report import Fault, Result, Scale, Tally
from crash.site import RUN, SECONDS, finish
from crash.storage_points import Point, list_points

STORAGE_EXIT_CODE = 5
SHARE_IN_THE_MIDDLE = 0.3  # most calls of a run that goes on are those of one from nothing
# What a kill can see: the page cache outlives the process, so that a missing sync shows only when power is cut.
KILL_CONTROLS = ("in place", "in place, synced", "manifest before picture", "checkpoint removed first")


@dataclass(frozen=True)
class Start:
    """A workspace to begin with, what was promised there, and the calls of a run that goes on from it."""

    name: str
    folder: Path
    acknowledged: Acknowledged
    points: Sequence[Point]


@dataclass(frozen=True)
class Trial:
    """`fault` (SIGKILL or an error's name) at a point, once or, with `lasting`, from there on."""

    start: Start
    point: Point
    fault: str
    lasting: bool = False

    @property
    def where(self) -> str:
        """The trial in words."""
        return f"{self.start.name}: {self.fault}{' from then on' if self.lasting else ''} at {self.point}"

    @property
    def injection(self) -> list[str]:
        """Options of strace; only calls on the point's path are counted."""
        what = "signal=SIGKILL" if self.fault == "SIGKILL" else f"error={self.fault}"
        when = f"{self.point.number}{'+' if self.lasting else ''}"
        return ["-e", f"inject={self.point.syscall}:{what}:when={when}"]


def measure(scale: Scale) -> Iterator[Result]:
    """A result for kills and one for errors."""
    workshop = Workshop(scale)
    starts = [workshop.start_from_nothing(), workshop.start_in_the_middle()]
    draw = scale.draw("strace")
    trials = list_trials(starts[0], draw)
    again = list_trials(starts[1], draw)
    trials += draw.sample(again, round(len(again) * SHARE_IN_THE_MIDDLE))
    kills = [trial for trial in trials if trial.fault == "SIGKILL"]
    errors = [trial for trial in trials if trial.fault != "SIGKILL"]
    yield workshop.measure("SIGKILL", kills, starts[0], KILL_CONTROLS)
    yield workshop.measure("ENOSPC, EIO, EROFS, EMFILE", errors, starts[0], tuple(CARELESS))


def list_trials(start: Start, draw: random.Random) -> list[Trial]:
    """Every fault at every point; a full or read-only disk may stay so."""
    pairs = [(point, fault) for point in start.points for fault in point.faults]
    return [Trial(start, *pair, lasting=pair[1] in ("ENOSPC", "EROFS") and draw.random() < 0.5) for pair in pairs]


class Workshop:
    """Runs trials, each in a copy of its start, as many at a time as there are processors."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._model_set = make_tiny_set(scale.scratch / "set")
        alone = self._make_workspace("alone")
        record([*COMMAND, *RUN], alone)
        self._golden = Golden.read(alone / "manifests/job")

    def start_from_nothing(self) -> Start:
        """An empty workspace."""
        return self._make_start("from nothing", self._make_workspace("nothing"))

    def start_in_the_middle(self) -> Start:
        """A workspace whose run was killed when most of its files were there."""
        folder = self._make_workspace("middle")
        syncs = len([point for point in list_points([*COMMAND, *RUN], self._copy(folder)) if point.syscall == "fsync"])
        record([*COMMAND, *RUN], folder, kill_at_sync=syncs * 3 // 4)
        return self._make_start("in the middle", folder)

    def measure(self, variant: str, trials: Sequence[Trial], start: Start, controls: Sequence[str]) -> Result:
        """So many of the trials as the scale asks for, then the controls."""
        started = time.monotonic()
        chosen = self._scale.draw(variant).sample(list(trials), self._scale.of(len(trials)))
        tally, hit = Tally(), 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for trial, (faults, was_hit) in zip(chosen, pool.map(self.try_one, chosen), strict=True):
                tally.add(faults, trial.where)
                hit += was_hit
        found = {name: self._find_out(name, start, variant) for name in controls}
        faults_of = Counter(trial.fault for trial in chosen)
        details = {"trials": dict(faults_of), "of": len(trials), "hit": hit, "kinds": tally.kinds}
        seconds = time.monotonic() - started
        return Result(
            "strace injection", variant, tally.states, tally.bad, found, seconds, tuple(tally.examples), details
        )

    def try_one(self, trial: Trial) -> tuple[list[Fault], bool]:
        """The faults of one trial, and whether the call was made at all (a name may change with the time)."""
        folder = self._copy(trial.start.folder)
        faults, hit = _strike(trial, folder, COMMAND)
        acknowledged = _read_events(folder, trial.start.acknowledged)
        recovered = recover(Path(JOB), folder)
        faults += judge(self._golden, acknowledged, recovered)
        if recovered.done.keys() != self._golden.pictures.keys():
            faults += finish(folder, self._golden, acknowledged)
        shutil.rmtree(folder)
        return faults, hit

    def _find_out(self, name: str, start: Start, variant: str) -> int:
        """1 once a trial shows that a broken writer is broken, 0 if none does."""
        command = [sys.executable, "-m", "crash.broken_writers", name]
        points = list_points([*command, *RUN], self._copy(start.folder))
        broken = Start(name, start.folder, start.acknowledged, points)
        wanted = "SIGKILL" if name in BROKEN else "ENOSPC"
        draw = self._scale.draw(f"{variant} {name}")
        trials = [trial for trial in list_trials(broken, draw) if trial.fault == wanted]
        for trial in draw.sample(trials, len(trials)):
            folder = self._copy(start.folder)
            _strike(trial, folder, command)
            acknowledged = _read_events(folder, start.acknowledged)
            if judge(self._golden, acknowledged, recover(Path(JOB), folder)):
                return 1
        return 0

    def _make_workspace(self, name: str) -> Path:
        return make_workspace(self._scale.scratch / name, self._model_set, JOBS["shortest"]).folder

    def _make_start(self, name: str, folder: Path) -> Start:
        points = list_points([*COMMAND, *RUN], self._copy(folder))
        return Start(name, folder, _read_events(folder, Acknowledged()), points)

    def _copy(self, folder: Path) -> Path:
        number = len(list(self._scale.scratch.glob("trial-*")))
        while True:
            target = self._scale.scratch / f"trial-{number}"
            try:
                shutil.copytree(folder, target, symlinks=True)
            except FileExistsError:
                number += 1
            else:
                (target / EVENTS).unlink(missing_ok=True)
                return target


def _strike(trial: Trial, folder: Path, command: Sequence[str]) -> tuple[list[Fault], bool]:
    """Run the command with the fault; what is wrong with how it ended.

    Only its first thread is traced, which owns the files (`list_points` makes sure), so that the model runs freely.
    """
    log = folder / "strace.log"
    path = trial.point.path
    tracing = ["-y", "-P", path, "-P", str(folder / path), "-e", f"trace={trial.point.syscall}"]
    try:
        ended = subprocess.run(
            ["strace", *tracing, *trial.injection, "-o", str(log), *command, *RUN],
            cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [Fault("stuck", f"no end after {SECONDS} s")], True
    text = log.read_text(encoding="utf-8", errors="replace")
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
    if "Traceback" in ended.stderr:
        return [Fault("traceback", ended.stderr.strip()[-300:])], True
    if trial.fault == "SIGKILL":
        hit = ended.returncode == -signal.SIGKILL
        return [] if hit or ended.returncode == 0 else [_odd_end(ended)], hit
    hit = "(INJECTED)" in text
    good = ended.returncode == 0 or (ended.returncode == STORAGE_EXIT_CODE and len(errors) == 1 and hit)
    return [] if good else [_odd_end(ended)], hit


def _odd_end(ended: subprocess.CompletedProcess[str]) -> Fault:
    return Fault("exit code", f"{ended.returncode}: {(ended.stderr + ended.stdout).strip()[-300:]}")


def _read_events(folder: Path, before: Acknowledged) -> Acknowledged:
    events = folder / EVENTS
    lines = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    said = Acknowledged.read(lines)
    return Acknowledged({**before.steps, **said.steps}, before.done | said.done)
