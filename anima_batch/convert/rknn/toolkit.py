"""Rockchip's rknn-toolkit2, each version in an environment of its own: its pins fit no other package's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anima_batch.convert.rknn
from anima_batch.convert.rknn.crash_patterns import name_pattern
from anima_batch.errors import ToolkitError, UsageError
from anima_batch.files import lock_folder, make_folder, storage_errors, sync_folder, write_atomic

# What all three versions import and work with on Python 3.10 to 3.12. Their metadata asks for an older torch.
_TORCH = "torch==2.13.0"
_REQUIREMENTS = (
    "numpy==1.26.4",
    "onnx==1.16.1",
    "onnxruntime==1.18.1",
    "protobuf==4.25.4",
    "setuptools<81",
    "psutil",
    "ruamel.yaml",
    "scipy<1.14",
    "tqdm",
    "opencv-python-headless<4.11",
    "fast-histogram",
)
TOOLKITS: Mapping[str, tuple[str, ...]] = {
    version: (_TORCH, *_REQUIREMENTS, f"rknn-toolkit2=={version}") for version in ("2.3.0", "2.3.2", "2.5.0")
}
NEWEST_PYTHON = (3, 12)  # the last with wheels of rknn-toolkit2

_PROGRAM = "program.py"
_TASK, _RESULT, PRINTED = "task.json", "result.json", "printed.txt"  # of a process, in its working directory
_STAMP = "requirements.txt"  # in a finished environment: what it was made of
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TEXT_BYTES = 4096  # of what a subprocess printed, from its end


@dataclass(frozen=True)
class Toolkit:
    """A version of rknn-toolkit2 that can be run."""

    version: str
    python: Path

    def run(self, task: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
        """The result of one task (see `program`) in a process of its own, with its `seconds`.

        `scratch` becomes its working directory and holds its files. Raises ToolkitError when it fails or dies, with
        the task's `name`, this version and, where it is known, the pattern in the graph that it dies of.
        """
        make_folder(scratch)
        scratch = scratch.resolve()
        ended = _run(self.command(task, scratch), scratch, scratch / PRINTED)
        try:
            result: dict[str, Any] = json.loads((scratch / _RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            result = {}
        if ended.code != 0 or not result:
            fault = self.fault(task, ended.code, result, scratch / PRINTED)
            raise ToolkitError(fault, process_exit=_exit_code(ended.code))
        return {**result, "seconds": ended.seconds}

    def command(self, task: Mapping[str, Any], scratch: Path) -> list[str]:
        """The command that does a task, which is written to `scratch`; its working directory must be that."""
        task_file, result_file = scratch / _TASK, scratch / _RESULT
        with storage_errors(scratch):
            result_file.unlink(missing_ok=True)
            task_file.write_text(json.dumps(dict(task)), encoding="utf-8")
        program = Path(anima_batch.convert.rknn.__file__).with_name(_PROGRAM)
        return [str(self.python), "-I", str(program), str(task_file), str(result_file), str(os.getpid())]

    def fault(self, task: Mapping[str, Any], code: int, result: Mapping[str, Any], printed: Path) -> str:
        """One line: what the process died of, and what to do about it."""
        where = f"{task['name']}: rknn-toolkit2 {self.version}: {task['task']}"
        if "error" in result:
            return f"{where}: {result['error']}" + (f": {_last_line(printed)}" if result["returned"] else "")
        cause = f"exit {_exit_code(code)}" + (f" ({signal.Signals(-code).name})" if code < 0 else "")
        if code == -signal.SIGKILL:
            return f"{where}: {cause}: the machine had too little memory: close other programs, then run it again"
        pattern = name_pattern(Path(task["onnx"]), self.version)
        return f"{where}: {cause}: {pattern or _last_line(printed)}"


@dataclass(frozen=True)
class _Ended:
    """How a subprocess ended; `code` is minus the signal where one killed it."""

    code: int
    seconds: float


def _run(command: Sequence[str], folder: Path, printed: Path) -> _Ended:
    """The subprocess run to its end; it goes when the caller is interrupted."""
    started = time.perf_counter()
    with printed.open("wb") as stream:
        process = subprocess.Popen(  # noqa: S603 - the command is this module's own
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
    try:
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    return _Ended(code, time.perf_counter() - started)


def _exit_code(code: int) -> int:
    """As a shell shows it: 139 for SIGSEGV."""
    return 128 - code if code < 0 else code


def _last_line(printed: Path) -> str:
    """The last thing that a subprocess said, errors before all else."""
    text = _COLOURS.sub("", printed.read_bytes()[-_TEXT_BYTES:].decode(errors="replace"))
    lines = [line.strip() for line in text.splitlines()]
    errors = [line for line in lines if line.startswith(("E ", "ERROR", "error"))]
    return next(reversed(errors or [line for line in lines if line]), "it said nothing")


def open_toolkit(
    version: str, folder: Path | None = None, on_progress: Callable[[str], None] = lambda line: None
) -> Toolkit:
    """The toolkit in `folder` (a cache of the user's without it), its environment made first where it is missing.

    on_progress is told before that, since it takes minutes.

    Raises UsageError for an unknown version or a Python without wheels, ToolkitError when the environment cannot be
    made.
    """
    if version not in TOOLKITS:
        raise UsageError(f"--toolkit: must be one of {', '.join(TOOLKITS)}, got {version!r}")
    folder = (folder or cache_folder()).absolute()  # subprocesses have another working directory
    home, stamp = folder / version, "\n".join(TOOLKITS[version]) + "\n"
    if not _is_ready(home, stamp):
        make_folder(folder)
        with lock_folder(folder, wait=True):
            if not _is_ready(home, stamp):  # another process may just have made it
                on_progress(f"toolkit {version}: its environment is made in {home} (1.5 GB, minutes)")
                _make_environment(version, home, stamp)
    return Toolkit(version, home / "bin" / "python")


def cache_folder() -> Path:
    """Where environments lie, about 1.5 GB each."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "anima-batch" / "toolkits"


def _is_ready(home: Path, stamp: str) -> bool:
    try:
        return (home / _STAMP).read_text(encoding="utf-8") == stamp and (home / "bin" / "python").exists()
    except OSError:
        return False


def _make_environment(version: str, home: Path, stamp: str) -> None:
    """Made under another name, which it loses when the toolkit can be imported: what is half made is made anew."""
    if sys.version_info[:2] > NEWEST_PYTHON:
        newest = ".".join(map(str, NEWEST_PYTHON))
        got = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(
            f"rknn-toolkit2 {version}: has no wheel for Python {got}: run anima-batch by {newest} or older"
        )
    partial = home.with_name(home.name + ".partial")
    with storage_errors(home):
        for old in (partial, home):
            if old.exists():
                shutil.rmtree(old)
    python = str(partial / "bin" / "python")
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--no-compile"]
    steps = {
        "python -m venv": [sys.executable, "-I", "-m", "venv", str(partial)],
        "pip install torch": [*pip, _TORCH],  # before the rest, so that an index with a build for the CPU serves it
        "pip install what it needs": [*pip, *_REQUIREMENTS],
        "pip install the toolkit": [*pip, "--no-deps", f"rknn-toolkit2=={version}"],
        "importing it": [python, "-I", "-c", "from rknn.api import RKNN"],
    }
    for step, command in steps.items():
        _run_step(f"rknn-toolkit2 {version}: {step}", command, home.with_name(home.name + ".log"))
    write_atomic(partial / _STAMP, stamp.encode())
    with storage_errors(home):
        partial.rename(home)
        sync_folder(home.parent)


def _run_step(step: str, command: Sequence[str], log: Path) -> None:
    try:
        code = _run(command, log.parent, log).code
    except OSError as error:
        raise ToolkitError(f"{step}: {command[0]}: {error.strerror}") from error
    if code != 0:
        raise ToolkitError(
            f"{step}: exit {_exit_code(code)}: {_last_line(log)} (all it said is in {log}): "
            "mend that, then run the same command again"
        )
