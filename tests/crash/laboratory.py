"""A guest with everything loaded and nothing mounted, kept once, so that a disk is looked at in a second or two."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crash.guest_kernel import find_kernel, write_first_files
from crash.guest_root import MODEL_SET, guest_environment, write_root_disk
from crash.jobs import make_tiny_set
from crash.machine import DISK_BYTES, Guest, Kept, Machine, copy_sparsely
from crash.oracle import Acknowledged, Begun, Golden, Picture, Recovered, judge
from crash.report import Fault

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=0"],
    "f2fs": ["mkfs.f2fs", "-q", "-f", "-t", "0"],
}
# Small histories and large ones, so few steps that much of the time goes into saving them, and latents of 16 KiB: on
# a slow card a checkpoint's data take longer than the blink between two cuts.
JOB = """schema_version = 1
model_set = "tiny"
[run]
threads = 1
[defaults]
prompt = "a boat"
seed = 1
steps = 5
width = 128
height = 128
[matrix]
policy = ["features", "full"]
[policy.features]
kind = "spectrum"
forecast = "features"
warmup_steps = 2
degree = 1
history = 2
"""
STEPS = 5


@dataclass(frozen=True)
class Cut:
    """A disk after the power went, and what the job had told by then; `where` says in words when that was."""

    disk: Path
    events: str
    where: str

    @property
    def acknowledged(self) -> Acknowledged:
        """What had been said to be durable."""
        return Acknowledged.read(self.events.splitlines())


@dataclass(frozen=True, eq=False)
class Laboratory:
    """The kept guest, the results of the job that was left alone in it, and a folder for disks."""

    scratch: Path
    guest: Guest
    ready: Kept
    results: Mapping[str, Any]
    _open: contextlib.ExitStack
    _idle: list[Machine] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def golden(self) -> Golden:
        """The results in the oracle's words."""
        pictures = {stem: Picture(**content) for stem, content in self.results["pictures"].items()}
        return Golden(pictures, {stem: tuple(steps) for stem, steps in self.results["steps"].items()})

    def new_path(self, what: str) -> Path:
        """A path that nothing has yet."""
        return self.scratch / f"{what}-{next(self._numbers)}"

    def make_disk(self, kind: str) -> Path:
        """A new file system."""
        disk = self.new_path("disk")
        _make_empty(disk)
        subprocess.run([*MAKE[kind], str(disk)], check=True, capture_output=True)
        return disk

    def restore(self, kept: Kept, disk: Path | None = None, *, slow: bool = False) -> Machine:
        """The kept machine once more, with a copy of its own disk or with another one."""
        if disk is None:
            copy_sparsely(kept.disk, disk := self.new_path("disk"))
        return Machine(self.guest, self.new_path("machine"), disk, kept, slow=slow)

    @contextlib.contextmanager
    def running_job(self, kind: str, command: list[str], *, late: bool = False) -> Iterator[Machine]:
        """A machine in which the job has been started on a new disk."""
        with self.restore(self.ready, self.make_disk(kind), slow=True) as machine:
            machine.ask("prepare", kind=kind, job=JOB, model_set=MODEL_SET)
            machine.ask("start", command=command, late=late)
            yield machine

    @contextlib.contextmanager
    def resumed_job(self, kind: str, command: list[str], cut: Cut) -> Iterator[Machine]:
        """A machine in which the job has been started again after a cut."""
        with self.restore(replace(self.ready, events=cut.events), cut.disk, slow=True) as machine:
            machine.ask("mount", kind=kind)
            machine.ask("start", command=command)
            yield machine

    def examine(self, kind: str, cut: Cut, *, interrupted: float | None = None) -> tuple[Fault, ...]:
        """The promises that the disk breaks; `interrupted`: the power goes again so long after recovery has begun."""
        if interrupted is not None:
            with self.restore(self.ready, cut.disk) as machine:
                machine.tell("recover", kind=kind)
                time.sleep(interrupted)
        found = self._look_at(kind, cut.disk)
        done = {stem: Picture(**content) for stem, content in found.get("done", {}).items()}
        begun = {stem: Begun(**content) for stem, content in found.get("begun", {}).items()}
        recovered = Recovered(done, begun, tuple(found.get("torn", ())), found["stuck"])
        return judge(self.golden, cut.acknowledged, recovered)

    def _look_at(self, kind: str, disk: Path) -> Any:
        """What the program finds on the disk, by a machine that has looked at others: its code is translated."""
        try:
            machine = self._idle.pop()
        except IndexError:
            machine = self._open.enter_context(self.restore(self.ready))
        copy_sparsely(disk, machine.disk)  # nothing of it is mounted, nor kept in the guest's memory
        found = machine.ask("recover", kind=kind)
        self._idle.append(machine)
        return found

    def finish(self, kind: str, cut: Cut) -> tuple[Fault, ...]:
        """What is not as promised when the job is run to its end."""
        with self.restore(self.ready, cut.disk) as machine:
            results = machine.ask("finish", kind=kind)
            made = Acknowledged.read(machine.events.splitlines())
        if stuck := results.get("stuck"):
            return (Fault("stuck", stuck),)
        faults = [] if results == self.results else [Fault("other bits", "the finished job is not the one left alone")]
        return (*faults, *(Fault("lost", f"{stem}: made again") for stem in made.done & cut.acknowledged.done))


@contextlib.contextmanager
def open_laboratory(scratch: Path) -> Iterator[Laboratory]:
    """Build the guest, run the job in it once, and keep it."""
    kernel = find_kernel()
    model_set = make_tiny_set(scratch / "tiny")
    guest = Guest(kernel.image, scratch / "initramfs", scratch / "root")
    write_root_disk(guest.root, scratch / "staging", model_set)
    command = [sys.executable, "-m", "crash.guest_agent"]
    write_first_files(kernel, guest.first_files, command, guest_environment())
    disk = scratch / "no-disk"
    _make_empty(disk)
    with Machine(guest, scratch / "boot", disk) as machine:
        results = machine.ask("run_alone", job=JOB, model_set=MODEL_SET)
        ready = machine.keep(scratch / "ready.memory", scratch / "ready.disk")
    with contextlib.ExitStack() as opened:
        yield Laboratory(scratch, guest, ready, results, opened)


def _make_empty(disk: Path) -> None:
    disk.write_bytes(b"")
    os.truncate(disk, DISK_BYTES)
