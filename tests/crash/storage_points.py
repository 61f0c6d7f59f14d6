"""The calls of a run at which storage can fail: which syscall, on which file, for the how manieth time."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from command import ENVIRONMENT

from crash.recorder import KEPT, join_split_lines

_SYSCALLS = ("openat", "read", "write", "fsync", "fallocate", "ftruncate", "rename", "unlink", "mkdir", "rmdir")
_LINE = re.compile(r"(?P<pid>\d+) +(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+).*")
# strace writes each of these with -xx and -y: "name" of a path argument, 3<path> of a descriptor.
_ARGUMENT = re.compile(r'"(?P<name>(?:\\x[0-9a-f]{2})*)"|\b\d+<(?P<path>(?:\\x[0-9a-f]{2})*)>')
_SPACE = ("SIGKILL", "ENOSPC", "EIO", "EROFS")


@dataclass(frozen=True)
class Point:
    """The `number`-th call (from 1) of a syscall on a path of the workspace."""

    syscall: str
    path: str
    number: int
    writing: bool = True

    @property
    def faults(self) -> tuple[str, ...]:
        """What may go wrong there, and being killed where something would change."""
        match self.syscall:
            case "openat":
                return (*_SPACE, "EMFILE") if self.writing else ("EIO", "EMFILE")
            case "read":
                return ("EIO",)
            case "write" | "fallocate" | "ftruncate":
                return ("SIGKILL", "ENOSPC", "EIO")
            case "unlink" | "rmdir":
                return ("SIGKILL", "EIO", "EROFS")
        return _SPACE  # fsync, rename, mkdir

    def __str__(self) -> str:
        return f"{self.syscall} {self.number} of {self.path}"


def list_points(command: Sequence[str], workspace: Path) -> list[Point]:
    """The points of a command that is run in the workspace to its end."""
    log = workspace / "strace.log"
    wanted = ",".join(f"?{name}" for name in _SYSCALLS)
    tracing = ["-f", "--seccomp-bpf", "-y", "-xx", "-s", "4096", "-e", "signal=none", "-e", f"trace={wanted}"]
    ended = subprocess.run(
        ["strace", *tracing, "-o", str(log), *command],
        cwd=workspace, env=ENVIRONMENT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr + ended.stdout
    lines = log.read_text(encoding="ascii").splitlines()
    log.unlink()
    return list(_read_points(lines, os.path.realpath(workspace)))


def _read_points(lines: Sequence[str], root: str) -> Iterator[Point]:
    counts: Counter[tuple[str, str]] = Counter()
    owner = lines[0].split()[0]
    for line in join_split_lines(lines):
        if not (match := _LINE.fullmatch(line)):
            continue
        name, arguments = match["name"], match["arguments"]
        paths = _paths(name, arguments, root)
        for path in paths:
            counts[name, path] += 1
        if paths:
            assert match["pid"] == owner, f"{name} {paths[0]}: made by another thread than the first"
            writing = name != "openat" or "O_WRONLY" in arguments or "O_RDWR" in arguments
            yield Point(name, paths[0], counts[name, paths[0]], writing)


def _paths(name: str, arguments: str, root: str) -> list[str]:
    """The call's paths of the job's state, relative to the workspace; of a write only the descriptor's."""
    found = _ARGUMENT.finditer(arguments)
    texts = [match["name"] if match["name"] is not None else match["path"] for match in found]
    if name in ("read", "write"):
        texts = texts[:1]  # the rest is data
    absolute = (os.path.join(root, os.fsdecode(bytes.fromhex(text.replace("\\x", "")))) for text in texts)
    relative = [os.path.relpath(os.path.normpath(path), root) for path in absolute]
    return [path for path in relative if path.split("/")[0] in KEPT]
