"""Recorded runs of small jobs: alone, after a cut, after a kill, and with broken writers."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from command import COMMAND

from crash.jobs import JOBS, make_tiny_set, make_workspace
from crash.oracle import Acknowledged, Golden
from crash.recorder import Call, Said, Sync, record
from crash.report import Scale
from crash.site import RUN, Site, read_tree
from crash.storage import Storage, Tree

JOBS_ALONE = ("full", "forecasts", "solvers")  # the first has random seeds, others in each workspace
INTERRUPTED = 8  # runs after a cut, and as many after a kill


@dataclass(frozen=True)
class Scene:
    """A recorded run: the tree and the promises it began with, its calls, what it led to, and a site to look at."""

    name: str
    job: str
    start: Tree
    acknowledged: Acknowledged
    calls: Sequence[Call]
    golden: Golden
    site: Site


class Studio:
    """Makes scenes in folders of its own."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._model_set = make_tiny_set(scale.scratch / "set")

    def record(self, name: str, job: str, command: Sequence[str] = COMMAND) -> Scene:
        """A run from nothing to the end."""
        site = self._make_site(name, job)
        return self._finish(name, job, site, {}, Acknowledged(), record([*command, *RUN], site.folder))

    def record_broken(self, name: str) -> Scene:
        """The run of a broken writer."""
        return self.record(name, "short", [sys.executable, "-m", "crash.broken_writers", name])

    def record_after_cut(self, name: str, before: Scene) -> Scene:
        """The run after a power cut in the middle of another scene."""
        draw = self._scale.draw(name)
        storage, acknowledged = Storage(before.start), before.acknowledged
        for call in before.calls[: draw.randrange(len(before.calls) // 4, len(before.calls) * 3 // 4)]:
            storage.apply(call)
            if isinstance(call, Said):
                acknowledged = acknowledged.after(call.event)
        tree = draw.choice(list(storage.possible_trees("weak", 64, draw)))
        site = self._make_site(name, before.job)
        site.show(tree)
        return self._finish(name, before.job, site, tree, acknowledged, record([*COMMAND, *RUN], site.folder))

    def record_after_kill(self, name: str, before: Scene) -> Scene:
        """A run that is killed, and the next one, which finds what was not synced yet."""
        syncs = sum(isinstance(call, Sync) for call in before.calls)
        moment = self._scale.draw(name).randrange(syncs // 4, syncs * 3 // 4)
        site = self._make_site(name, before.job)
        calls = record([*COMMAND, *RUN], site.folder, kill_at_sync=moment)
        calls += record([*COMMAND, *RUN], site.folder)
        return self._finish(name, before.job, site, {}, Acknowledged(), calls)

    def _make_site(self, name: str, job: str) -> Site:
        folder = self._scale.scratch / "scenes" / name.replace(" ", "-")
        return Site(make_workspace(folder, self._model_set, JOBS[job]))

    def _finish(
        self, name: str, job: str, site: Site, start: Tree, acknowledged: Acknowledged, calls: Sequence[Call]
    ) -> Scene:
        storage = Storage(start)
        for call in calls:
            storage.apply(call)
        assert storage.live() == read_tree(site.folder), f"{name}: the recorded calls do not lead to what lies on disk"
        golden = Golden.read(site.folder / "manifests/job")
        site.clear()
        scene = Scene(name, job, start, acknowledged, calls, golden, site)
        states = _read_states(scene)
        return dataclasses.replace(scene, golden=dataclasses.replace(golden, states=states))


def _read_states(scene: Scene) -> Mapping[tuple[str, int], str]:
    """The digest of each step's whole state, from the checkpoints of the recorded run."""
    storage = Storage(scene.start)
    states: dict[tuple[str, int], str] = {}
    for call in scene.calls:
        storage.apply(call)
        if isinstance(call, Said) and call.event["event"] == "StepDone":
            begun = scene.site.recover(storage.live()).begun[call.event["stem"]]
            states[call.event["stem"], begun.step] = begun.state
    return states


def record_scenes(studio: Studio, scale: Scale) -> list[Scene]:
    """The runs that must be safe: each job alone, then cut and killed in the middle and gone on with."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        alone = {scene.job: scene for scene in pool.map(lambda job: studio.record(job, job), JOBS_ALONE)}
        jobs = [JOBS_ALONE[1 + number % 2] for number in range(scale.of(INTERRUPTED))]
        cut = [pool.submit(studio.record_after_cut, f"{j} after cut {n}", alone[j]) for n, j in enumerate(jobs)]
        killed = [pool.submit(studio.record_after_kill, f"{j} after kill {n}", alone[j]) for n, j in enumerate(jobs)]
        scenes = [*alone.values(), *(future.result() for future in (*cut, *killed))]
    for scene in scenes:
        known = alone[scene.job].golden
        assert scene.job == "full" or _same_bits(scene.golden, known), f"{scene.name}: other bits than without the cut"
    return scenes


def _same_bits(a: Golden, b: Golden) -> bool:
    both = a.states.keys() & b.states.keys()
    return a.pictures == b.pictures and a.steps == b.steps and all(a.states[key] == b.states[key] for key in both)


def scratch_folder() -> Path | None:
    """Where files are made fastest: memory, where the machine has such a folder."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() else None
