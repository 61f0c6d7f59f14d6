"""Runs in the guest as its first process: one JSON command a line from the host, one JSON answer a line back."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from crash.mounts import mount, sync_mounted, unmount
from crash.oracle import Golden, recover

JOB = "jobs/job.toml"
DISK, DISK_DEVICE = Path("/disk"), "/dev/vdb"
WORKSPACE = DISK / "workspace"
CHOICE = Path("/run/choice")
COMMAND = [sys.executable, "-m", "anima_batch"]
RUN_SECONDS = 900
PORT_SECONDS = 30


def find_port(name: str) -> Path:
    """The device of a virtio port by the name that the host gave it."""
    for _ in range(PORT_SECONDS * 10):  # they appear some time after the driver
        for port in Path("/sys/class/virtio-ports").glob("*"):
            if (port / "name").is_file() and (port / "name").read_text(encoding="ascii").strip() == name:
                return Path("/dev") / port.name
        time.sleep(0.1)
    raise FileNotFoundError(f"no virtio port named {name}")


class Agent:
    """What the host may ask for; each method is a command, its arguments are the command's keys."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._job: subprocess.Popen[bytes] | None = None
        self._choice = -1

    def run_alone(self, job: str, model_set: str) -> Mapping[str, Any]:
        """The results of a job in memory that nobody disturbs; what it loads stays in the guest's memory."""
        workspace = Path("/run/alone")
        _prepare(workspace, job, model_set)
        _run(workspace)
        golden = Golden.read(workspace / "manifests/job")
        assert not recover(Path(JOB), workspace).stuck
        shutil.rmtree(workspace)
        return {"pictures": _plain(golden.pictures), "steps": golden.steps}

    def prepare(self, kind: str, job: str, model_set: str) -> None:
        """An empty workspace on the disk."""
        _write_in_pages()
        mount(DISK_DEVICE, DISK, kind)
        _prepare(WORKSPACE, job, model_set)
        sync_mounted(DISK)

    def mount(self, kind: str) -> None:
        """The disk as a cut left it."""
        _write_in_pages()
        mount(DISK_DEVICE, DISK, kind)

    def start(self, command: Sequence[str], *, late: bool = False) -> None:
        """The job on the mounted disk; with `late` this waits until it asks for its writer."""
        if late:
            os.mkfifo(CHOICE)
        with open("/run/job.log", "wb") as log:
            arguments = [sys.executable, *command, "run", JOB, "--events", str(self._events)]
            environment = {**os.environ, "CHOICE": str(CHOICE)}
            self._job = subprocess.Popen(arguments, cwd=WORKSPACE, env=environment, stdout=log, stderr=log)
        while late and self._choice < 0:
            time.sleep(0.1)
            assert self._job.poll() is None, Path("/run/job.log").read_text(encoding="utf-8")
            try:
                self._choice = os.open(CHOICE, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody reads it yet
                continue

    def choose(self, name: str) -> None:
        """Let the job that waits go on with this writer."""
        os.write(self._choice, name.encode())
        os.close(self._choice)

    def recover(self, kind: str) -> Mapping[str, Any]:
        """What the program finds on the disk after a cut; an error of the file system is an answer too."""
        try:
            mount(DISK_DEVICE, DISK, kind)
        except OSError as error:
            return {"stuck": f"the file system: {error}"}
        found = recover(WORKSPACE / JOB, WORKSPACE)
        unmount(DISK)
        return {
            "done": _plain(found.done),
            "begun": _plain(found.begun),
            "torn": found.torn,
            "stuck": found.stuck,
        }

    def finish(self, kind: str) -> Mapping[str, Any]:
        """The results of the job, run to its end on the disk after a cut; "stuck" where it does not end well."""
        mount(DISK_DEVICE, DISK, kind)
        try:
            _run(WORKSPACE, self._events)
        except RuntimeError as error:
            return {"stuck": str(error)}
        golden = Golden.read(WORKSPACE / "manifests/job")
        unmount(DISK)
        return {"pictures": _plain(golden.pictures), "steps": golden.steps}


def _write_in_pages() -> None:
    """No request to the disk is longer than a page, so that a cut can fall into the midst of a file."""
    (Path("/sys/block") / Path(DISK_DEVICE).name / "queue/max_sectors_kb").write_text("4", encoding="ascii")


def _prepare(workspace: Path, job: str, model_set: str) -> None:
    for folder in ("jobs", "models"):
        (workspace / folder).mkdir(parents=True)
    (workspace / "models" / "tiny").symlink_to(model_set)
    (workspace / JOB).write_text(job, encoding="utf-8")


def _run(workspace: Path, events: Path | None = None) -> None:
    arguments = [*COMMAND, "run", JOB, *(["--events", str(events)] if events else [])]
    ended = subprocess.run(arguments, cwd=workspace, capture_output=True, text=True, timeout=RUN_SECONDS)
    if ended.returncode != 0:
        raise RuntimeError(f"exit {ended.returncode}: {(ended.stderr + ended.stdout).strip()[-500:]}")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dataclasses.asdict(value) for key, value in values.items()}


def serve(port: BinaryIO, agent: Agent) -> None:
    """Answer commands for as long as the machine runs; what goes wrong is told, with its traceback."""
    commands = io.BufferedReader(port)  # type: ignore[type-var]
    while True:
        if not (line := commands.readline()):  # the host's end is not there yet after a machine was restored
            time.sleep(0.01)
            continue
        command = json.loads(line)
        method: Callable[..., Any] = getattr(agent, command.pop("do"))
        try:
            answer = {"answer": method(**command)}
        except Exception:  # the host decides what it means
            answer = {"error": traceback.format_exc()}
        say(port, answer)


def say(port: BinaryIO, answer: Mapping[str, Any]) -> None:
    """One line to the host; a port takes 32 KiB at once."""
    view = memoryview(json.dumps(answer).encode() + b"\n")
    while view:
        view = view[port.write(view) :]


def main() -> None:
    """Serve the host."""
    with open(find_port("agent"), "r+b", buffering=0) as port:
        say(port, {"answer": "ready"})
        serve(port, Agent(find_port("events")))


if __name__ == "__main__":
    main()
