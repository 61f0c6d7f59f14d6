"""A scheduler and boards as processes on loopback, and the driver beside them."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from json import loads
from pathlib import Path

import psutil
from command import COMMAND, Workspace

WAIT_SECONDS = 120

JOB = """
[defaults]
steps = 6
[matrix]
prompt = ["a red house", "an owl at night"]
seed = ["1..{seeds}"]
policy = ["full", "spectrum"]
"""


class Fleet:
    """`driver` is where the job is run; boards have workspaces of their own beside it, or share that one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver = Workspace(folder / "driver")
        # Dask warns where a disk is slow.
        self.driver.environment["PYTHONWARNINGS"] = "error,default::UserWarning"
        self.events = folder / "events.jsonl"
        self.tls: tuple[str, ...] = ()
        self.port = _find_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}

    @property
    def address(self) -> str:
        return f"{'tls' if self.tls else 'tcp'}://127.0.0.1:{self.port}"

    def start_scheduler(self, *options: str, ttl: str = "300s") -> None:
        """`dask scheduler`, in the environment of the tests."""
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
        command += ["--port", str(self.port), "--no-dashboard", "--dashboard-address", "127.0.0.1:0", *options]
        self._start("scheduler", command, {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": ttl})
        wait_until(self._is_listening, "the scheduler")

    def start_boards(self, *names: str, shares: bool = False, **environment: str) -> None:
        """`fleet-worker` for each; returns when they serve."""
        for name in names:
            workspace = self.driver.folder if shares else self.folder / name
            workspace.mkdir(exist_ok=True)
            command = [*COMMAND, "fleet-worker", self.address, "--workspace", str(workspace), "--name", name, *self.tls]
            self._start(name, command, environment)
        for name in names:
            wait_until(lambda name=name: "serves" in self.log(name), f"{name}: {self.log(name)}")

    def log(self, name: str) -> str:
        """What a process has said."""
        return (self.folder / f"{name}.log").read_text()

    def run(self, job: str, *options: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """The driver, until it ends."""
        return self.driver.run(*self._arguments(job, *options), check=check)

    def start(self, job: str, *options: str) -> subprocess.Popen[bytes]:
        """The driver, under way; what it says goes into driver.log."""
        command = [*COMMAND, *self._arguments(job, *options)]
        with (self.folder / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                command, cwd=self.driver.folder, env=self.driver.environment, stdout=log, stderr=log
            )
        self.processes["driver"] = driver  # a test that fails leaves none behind
        return driver

    def kill(self, name: str) -> None:
        """SIGKILL, as when the power is cut; its children go with it."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def pause(self, name: str) -> None:
        """SIGSTOP it and its children."""
        for process in self._family(name):
            process.suspend()

    def resume(self, name: str) -> None:
        """Let it wake."""
        for process in self._family(name):
            process.resume()

    def stop(self) -> None:
        """End all that still runs."""
        for name, process in self.processes.items():
            for member in self._family(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.resume()
            process.kill()
            process.wait()

    def told(self, kind: str) -> list[dict]:
        """The events of a kind, of all drivers."""
        if not self.events.exists():
            return []
        lines = self.events.read_text().splitlines(keepends=True)
        events = [loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == kind]

    def count_steps(self) -> int:
        """Steps that were told of."""
        return len(self.told("StepDone"))

    def repeated_steps(self) -> Counter[str]:
        """By image, how many steps were told more than once."""
        steps = Counter((event["stem"], event["report"]["index"]) for event in self.told("StepDone"))
        repeated: Counter[str] = Counter()
        for (stem, _), count in steps.items():
            repeated[stem] += count - 1
        return repeated

    def boards_of(self, job: str = "job") -> Counter[str]:
        """Runs by board, over the job's manifests."""
        return Counter(run["board"] for manifest in self.driver.manifests(job).values() for run in manifest["runs"])

    def _arguments(self, job: str, *options: str) -> list[str]:
        return ["run", job, "--dask", self.address, "--events", str(self.events), *self.tls, *options]

    def _family(self, name: str) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.processes[name].pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command, env={**self.driver.environment, **environment}, stdout=log, stderr=log, cwd=self.folder
            )

    def _is_listening(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@contextlib.contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    """A fleet whose processes end with the block."""
    fleet = Fleet(folder)
    try:
        yield fleet
    finally:
        fleet.stop()


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait for it; fails with `what` after so many seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Signal a driver and wait for its end."""
    process.send_signal(number)
    process.wait()


def _find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
