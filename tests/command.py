"""The real command line in its own process, in a workspace of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from anima_batch.model_set import built_in_folder

COMMAND = [sys.executable, "-m", "anima_batch"]
ENVIRONMENT = {**os.environ, "PYTHONWARNINGS": "error", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class Workspace:
    """A folder with jobs/ in it, and the commands run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = dict(ENVIRONMENT)
        (folder / "jobs").mkdir(parents=True, exist_ok=True)

    def make_faults(self, *faults: dict[str, Any]) -> None:
        """Let the worker of later runs fail on purpose (see backends.faults); those of `times` in all, not a run."""
        for number, fault in enumerate(faults):
            if "times" in fault:
                fault.setdefault("ledger", str(self.folder / f"fault-{number}"))
        self.environment["ANIMA_BATCH_FAULTS"] = json.dumps(faults)

    def make_own_set(self, name: str = "picture-book") -> None:
        """Put a model set into models/mine: picture-book with other means of latents, and so with its own digest."""
        folder = self.folder / "models/mine"
        shutil.copytree(built_in_folder() / "picture-book", folder)
        description = json.loads((folder / "model_set.json").read_text())
        description["name"] = name
        description["vae"]["latent_mean"][0] += 0.01
        (folder / "model_set.json").write_text(json.dumps(description))

    def write_job(self, text: str, name: str = "job") -> str:
        """The job's path, as one gives it on the command line."""
        path = self.folder / "jobs" / f"{name}.toml"
        path.write_text(text if "schema_version" in text else f"schema_version = 1\n{text}", encoding="utf-8")
        return f"jobs/{name}.toml"

    def run(self, *arguments: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """The ended command; its exit code must be `check`, and no traceback may show."""
        ended = subprocess.run(
            [*COMMAND, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300
        )
        assert "Traceback" not in ended.stderr, ended.stderr
        assert check is None or ended.returncode == check, ended.stderr + ended.stdout
        return ended

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command, running, its stderr to be read line by line."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def json(self, *arguments: str, check: int | None = 0) -> Any:
        """What the command prints with --json."""
        return json.loads(self.run(*arguments, "--json", check=check).stdout)

    def pictures(self, job: str = "job") -> list[Path]:
        """The job's PNGs."""
        return sorted((self.folder / "outputs" / job).glob("*.png"))

    def manifests(self, job: str = "job") -> dict[str, dict[str, Any]]:
        """The job's manifests by stem, as plain JSON."""
        paths = sorted((self.folder / "manifests" / job).glob("*.json"))
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}

    def results(self, job: str = "job") -> dict[str, tuple[str, str, list[str]]]:
        """Latents' digest, pixels' digest and each step's digest, by stem."""
        return {
            stem: (
                manifest["latents"]["sha256"],
                manifest["image"]["pixel_sha256"],
                [step["latents_xxh3"] for step in manifest["steps"]],
            )
            for stem, manifest in self.manifests(job).items()
        }


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """The first line of stderr that holds the text; fails when the process ends before."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the process ended with {process.wait()} before it said {text!r}")


def show_on_terminal(workspace: Workspace, *arguments: str) -> str:
    """What the command writes to a terminal that is its stdout and stderr."""
    ours, its = os.openpty()
    environment = {**workspace.environment, "COLUMNS": "400", "TERM": "xterm"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=workspace.folder, env=environment, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other side is closed
        while block := os.read(ours, 65536):
            shown += block
    os.close(ours)
    assert process.wait() == 0, shown
    return shown.decode()
