"""Real ext4 on a disk whose writes and flushes were logged: any cut is made from the log, mounted and looked at."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from command import COMMAND, ENVIRONMENT

from crash.block_states import Cut, Recording, choose_cuts, make_states
from crash.broken_writers import BROKEN
from crash.jobs import JOB, JOBS, make_tiny_set, make_workspace
from crash.logged_device import LoggedDevice
from crash.mounts import mounted_image, sync_mounted
from crash.oracle import Acknowledged, Golden, judge, recover
from crash.report import Fault, Result, Scale, Tally
from crash.site import finish

RECORDED_JOBS = ("short", "forecasts", "solvers")  # "full" draws seeds, so that no other run is its golden one
STATES = 4000  # of the jobs and of a recovery together, a quarter each; at least every prefix of each
FINISHED = 60  # of these, run to their end
DISK_BYTES = 16 << 20
ENOUGH = 3  # bad states of a control, after which it counts as caught
CONTROL_STATES = 400  # after which it does not

_MKFS = ["mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=4", "-N", "512", "-E", "nodiscard,lazy_itable_init=0"]


@dataclass(frozen=True)
class Bench:
    """Where states are made and looked at, and the results of each job that was left alone."""

    scratch: Path
    model_set: Path
    golden: dict[str, Golden]

    @property
    def mounted(self) -> Path:
        """Where the disk is mounted: always there, as a disk of a board is."""
        return self.scratch / "disk"

    @property
    def workspace(self) -> Path:
        """The workspace on the disk."""
        return self.mounted / "workspace"


def measure(scale: Scale) -> Iterator[Result]:
    """Every prefix of each log, lost and reordered writes, and the same of a recovery."""
    started = time.monotonic()
    bench = make_bench(scale.scratch)
    recordings = [record(bench, job, COMMAND) for job in RECORDED_JOBS]
    recordings.append(record_recovery(bench, recordings[1], scale.draw("recovery")))
    tally, finished = Tally(), 0
    for recording in recordings:
        moments = scale.draw(f"cuts of {recording.name}")
        count = scale.of(STATES // len(recordings))
        cuts = choose_cuts(recording, moments, count, every_prefix=scale.share >= 1)
        to_finish = set(moments.sample(cuts, min(len(cuts), scale.of(FINISHED // len(recordings)))))
        finished += len(to_finish)
        look_at(bench, recording, cuts, tally, to_finish)
    yield Result(
        method="logged disk",
        variant="ext4",
        states=tally.states,
        bad=tally.bad,
        controls=count_controls(bench, recordings[0], scale),
        seconds=time.monotonic() - started,
        examples=tuple(tally.examples),
        details={
            "kinds": tally.kinds,
            "finished": finished,
            "entries": {recording.name: len(recording.log) - recording.first for recording in recordings},
        },
    )


def make_bench(scratch: Path) -> Bench:
    """A bench, for which each job is run once and left alone."""
    model_set = make_tiny_set(scratch / "tiny")
    golden = {}
    for job in RECORDED_JOBS:
        workspace = make_workspace(scratch / f"golden-{job}", model_set, JOBS[job])
        workspace.run("run", JOB)
        golden[job] = Golden.read(workspace.folder / "manifests/job")
    (scratch / "disk").mkdir()
    return Bench(scratch, model_set, golden)


def record(bench: Bench, job: str, command: Sequence[str]) -> Recording:
    """The log of a whole job on a new disk."""
    image = _make_disk(bench.scratch / "new")
    with LoggedDevice(image, bench.scratch / "fuse") as device, mounted_image(device.disk, bench.mounted):
        make_workspace(bench.workspace, bench.model_set, JOBS[job])
        sync_mounted(bench.mounted)
        first = len(device.log)
        _run(command, bench.workspace, device.events)
        return Recording(job, job, image, tuple(device.log), first, Acknowledged())


def record_recovery(bench: Bench, recording: Recording, moments: random.Random) -> Recording:
    """The log of a recovery from a cut in the recording's middle, beginning with the replay of the disk's journal."""
    third = (len(recording.log) - recording.first) // 3
    cut = Cut(moments.randrange(recording.first + third, len(recording.log) - third))
    ((_, image, acknowledged),) = make_states(recording, [cut])
    with LoggedDevice(image, bench.scratch / "fuse") as device, mounted_image(device.disk, bench.mounted):
        _run(COMMAND, bench.workspace, device.events)
        name = f"{recording.job}, recovery from {cut}"
        return Recording(name, recording.job, image, tuple(device.log), 0, acknowledged)


def _make_disk(path: Path) -> bytes:
    path.write_bytes(b"")
    os.truncate(path, DISK_BYTES)
    subprocess.run([*_MKFS, str(path)], check=True)
    return path.read_bytes()


def _run(command: Sequence[str], workspace: Path, events: Path) -> None:
    arguments = [*command, "run", JOB, "--events", str(events)]
    ended = subprocess.run(arguments, cwd=workspace, env=ENVIRONMENT, capture_output=True, text=True, timeout=600)
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: exit {ended.returncode}: {ended.stderr}")


def look_at(
    bench: Bench, recording: Recording, cuts: Sequence[Cut], tally: Tally, to_finish: Set[Cut] = frozenset()
) -> None:
    """Mount and judge each state; some jobs go on to their end."""
    state = bench.scratch / "state"
    for cut, image, acknowledged in make_states(recording, cuts):
        state.write_bytes(image)
        faults = _examine(bench, bench.golden[recording.job], acknowledged, state, to_the_end=cut in to_finish)
        tally.add(faults, f"{recording.name}: {cut}")


def _examine(
    bench: Bench, golden: Golden, acknowledged: Acknowledged, state: Path, *, to_the_end: bool
) -> tuple[Fault, ...]:
    """The promises that one disk breaks; reads only, unless the job goes on to the end."""
    try:
        with mounted_image(state, bench.mounted):
            faults = judge(golden, acknowledged, recover(bench.workspace / JOB, bench.workspace))
            if to_the_end:
                faults = (*faults, *finish(bench.workspace, golden, acknowledged))
            return faults
    except OSError as error:
        return (Fault("stuck", f"the file system: {error}"),)


def count_controls(bench: Bench, right: Recording, scale: Scale) -> dict[str, int]:
    """How many bad states each broken writer has, up to enough, and a disk that is broken itself."""
    controls = {}
    for name in BROKEN:
        job = "forecasts" if name == "in place, synced" else "short"  # torn only where it replaces a checkpoint
        recording = record(bench, job, [sys.executable, "-m", "crash.broken_writers", name])
        controls[name] = count_bad(bench, recording, scale.draw(f"cuts of {name}"))
    careless = dataclasses.replace(right, flushes_kept=False)
    controls["a disk that ignores flushes"] = count_bad(bench, careless, scale.draw("ignored flushes"))
    return controls


def count_bad(bench: Bench, recording: Recording, moments: random.Random) -> int:
    """Bad states among some chosen at random, until there are enough."""
    tally = Tally()
    cuts = choose_cuts(recording, moments, CONTROL_STATES, every_prefix=False)
    for cut in moments.sample(cuts, len(cuts)):
        look_at(bench, recording, [cut], tally)
        if tally.bad == ENOUGH:
            break
    return tally.bad
