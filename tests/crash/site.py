"""A workspace whose files are set to any state, to see what the program makes of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import xxhash
from command import COMMAND, ENVIRONMENT, Workspace

from crash.jobs import JOB
from crash.oracle import Acknowledged, Golden, Recovered, recover
from crash.recorder import EVENTS, KEPT
from crash.report import Fault
from crash.storage import Tree

SECONDS = 600  # for a run that takes two on a machine that is free
RUN = ("run", JOB, "--events", EVENTS)


def run_command(folder: Path, command: Sequence[str] = COMMAND) -> subprocess.CompletedProcess[str]:
    """A run of the job, ended; its events are appended to EVENTS in the workspace."""
    return subprocess.run(
        [*command, *RUN], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS
    )


def read_tree(folder: Path) -> dict[str, bytes | None]:
    """What a job has written in a workspace."""
    paths = [path for kept in KEPT for path in [folder / kept, *(folder / kept).rglob("*")] if path.exists()]
    return {path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes() for path in paths}


def finish(folder: Path, golden: Golden, acknowledged: Acknowledged) -> list[Fault]:
    """Run the job to its end and tell what is not as promised: other bits, or work that was done once more."""
    events = folder / EVENTS
    events.unlink(missing_ok=True)
    kept = {
        path: path.read_bytes() for path in (folder / "manifests/job").glob("*.json") if path.stem in acknowledged.done
    }
    try:
        ended = run_command(folder)
    except subprocess.TimeoutExpired:
        return [Fault("stuck", f"no end after {SECONDS} s")]
    if ended.returncode != 0 or "Traceback" in ended.stderr:
        return [Fault("stuck", f"exit {ended.returncode}: {(ended.stderr + ended.stdout).strip()[-300:]}")]
    found = Golden.read(folder / "manifests/job")
    faults = []
    if (found.pictures, found.steps) != (golden.pictures, golden.steps):
        faults.append(Fault("other bits", "the finished job is not that of the run left alone"))
    said = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    made = {event["stem"] for event in said if event["event"] == "ImageDone"}
    if again := sorted(made & acknowledged.done):
        faults.append(Fault("lost", f"made again: {', '.join(again)}"))
    faults += [Fault("lost", f"{path.name}: changed") for path, data in kept.items() if path.read_bytes() != data]
    steps = {(event["stem"], event["report"]["index"]) for event in said if event["event"] == "StepDone"}
    if again := sorted(f"{stem} {index}" for stem, index in steps if index <= acknowledged.steps.get(stem, 0)):
        faults.append(Fault("repeated", f"durable steps made again: {', '.join(again)}"))
    return faults


class Site:
    """A workspace on disk; `show` changes only the files that differ from what it showed before."""

    def __init__(self, workspace: Workspace) -> None:
        self.folder = workspace.folder
        self._shown: dict[str, bytes | None] = {}
        self._known: dict[bytes, Recovered] = {}

    def show(self, tree: Tree) -> None:
        """Make the workspace's files those of the tree."""
        for path in sorted(self._shown, reverse=True):  # what is in a folder before the folder
            if path not in tree or (tree[path] is None) != (self._shown[path] is None):
                (os.rmdir if self._shown[path] is None else os.unlink)(self.folder / path)
                del self._shown[path]
        for path in sorted(tree):
            content = tree[path]
            if path in self._shown and self._shown[path] == content:
                continue
            if content is None:
                os.mkdir(self.folder / path)
            else:
                (self.folder / path).write_bytes(content)
            self._shown[path] = content

    def clear(self) -> None:
        """Remove what a real run has left here."""
        for name in KEPT:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self._shown = {}

    def recover(self, tree: Tree) -> Recovered:
        """What the program would find in the tree; known trees are not looked at again."""
        key = tree_key(tree)
        if key not in self._known:
            self.show(tree)
            self._known[key] = recover(Path(JOB), self.folder)
        return self._known[key]

    def finish(self, tree: Tree, golden: Golden, acknowledged: Acknowledged) -> list[Fault]:
        """Run the job from the tree to its end; see `finish`."""
        self.show(tree)
        faults = finish(self.folder, golden, acknowledged)
        self.clear()
        return faults


def tree_key(tree: Tree) -> bytes:
    """Equal for equal trees only."""
    digest = xxhash.xxh3_128()
    for path in sorted(tree):
        content = tree[path]
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        digest.update(xxhash.xxh3_128_digest(content or b""))
    return digest.digest()
