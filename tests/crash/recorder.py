"""Every storage call of a command, in order and with its data, as strace saw it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from command import ENVIRONMENT

EVENTS = "events.jsonl"
KEPT = ("outputs", "manifests")  # what a job writes in its workspace, besides the events

_SYSCALLS = (
    "open,openat,creat,write,pwrite64,writev,ftruncate,truncate,fallocate,fsync,fdatasync,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir"
)
_LINE = re.compile(r"(?P<pid>\d+) +(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+|\?)(?P<rest>.*)", re.DOTALL)
_UNFINISHED = re.compile(r"(?P<pid>\d+) +(?P<begun>\w+\(.*?) *<unfinished \.\.\.>", re.DOTALL)
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<ended>.*)", re.DOTALL)
_QUOTED = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_OPENED = re.compile(r"<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True, slots=True)
class Open:
    """A file opened for writing."""

    path: str
    create: bool
    truncate: bool


@dataclass(frozen=True, slots=True)
class Write:
    path: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A file cut or grown to a size; what is new is zero."""

    path: str
    size: int
    grow_only: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """fsync or fdatasync of a file or folder."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Remove:
    """unlink or rmdir."""

    path: str


@dataclass(frozen=True, slots=True)
class MakeFolder:
    path: str


@dataclass(frozen=True, slots=True)
class Said:
    """An event that the user could read from here on."""

    event: Mapping[str, Any]


Call: TypeAlias = Open | Write | Resize | Sync | Rename | Remove | MakeFolder | Said


def record(command: Sequence[str], workspace: Path, *, kill_at_sync: int | None = None) -> list[Call]:
    """The calls of a command run in the workspace, which must write its events to EVENTS there.

    With `kill_at_sync`, it is killed as it is about to make its n-th fsync.
    """
    log = workspace / "strace.log"
    wanted = "?" + _SYSCALLS.replace(",", ",?")  # "?": not every machine has each of them
    tracing = ["-f", "-y", "-xx", "-s", str(1 << 26), "-e", "signal=none", "-e", f"trace={wanted}", "-o", str(log)]
    if kill_at_sync is not None:
        tracing += ["-e", f"inject=fsync:signal=SIGKILL:when={kill_at_sync}"]
    else:
        tracing += ["--seccomp-bpf"]  # stops at these calls only; signals are not injected with it
    ended = subprocess.run(
        ["strace", *tracing, *command], cwd=workspace, env=ENVIRONMENT, capture_output=True, text=True, timeout=600
    )
    killed = kill_at_sync is not None and ended.returncode in (-9, 137)
    assert ended.returncode == 0 or killed, ended.stderr + ended.stdout
    calls = list(parse(log.read_text(encoding="ascii").splitlines(), workspace))
    log.unlink()
    return calls


def parse(lines: Sequence[str], workspace: Path) -> Iterator[Call]:
    """The calls in a log of strace that concern the workspace, paths relative to it; failed calls are left out."""
    reader = _Reader(os.path.realpath(workspace))
    for line in join_split_lines(lines):
        if (match := _LINE.fullmatch(line)) and not match["result"].startswith(("-", "?")):
            yield from reader.read(match)


def join_split_lines(lines: Sequence[str]) -> Iterator[str]:
    """Calls that another process interrupted in the log, whole and where they ended."""
    begun: dict[str, str] = {}
    for line in lines:
        if match := _UNFINISHED.fullmatch(line):
            begun[match["pid"]] = match["begun"]
        elif match := _RESUMED.fullmatch(line):
            yield f"{match['pid']} {begun.pop(match['pid'])}{match['ended']}"
        else:
            yield line


class _Reader:
    """Keeps where each descriptor stands in its file."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._offsets: dict[tuple[str, str], int] = {}

    def read(self, match: re.Match[str]) -> Iterator[Call]:
        name, arguments = match["name"], match["arguments"]
        descriptor = (match["pid"], arguments.split("<", 1)[0])
        if name in ("open", "openat", "creat"):
            yield from self._read_open(match)
        elif name in ("write", "writev", "pwrite64"):
            yield from self._read_write(name, arguments, descriptor, int(match["result"]))
        elif name in ("fsync", "fdatasync", "ftruncate", "fallocate"):
            yield from self._read_descriptor_call(name, arguments)
        else:
            yield from self._read_path_call(name, arguments)

    def _read_open(self, match: re.Match[str]) -> Iterator[Call]:
        opened = _OPENED.match(match["rest"])
        path = self._relative(_decode(opened[1])) if opened else None
        flags = match["arguments"] if match["name"] != "creat" else "O_WRONLY|O_CREAT|O_TRUNC"
        if path is None or not re.search(r"O_WRONLY|O_RDWR", flags):
            return
        assert "O_TMPFILE" not in flags, "a file without a name cannot be followed"
        self._offsets[match["pid"], match["result"]] = 0
        if path != EVENTS:
            yield Open(path, "O_CREAT" in flags, "O_TRUNC" in flags)

    def _read_write(self, name: str, arguments: str, descriptor: tuple[str, str], count: int) -> Iterator[Call]:
        if (path := self._descriptor_path(arguments)) is None:
            return
        parts = list(_QUOTED.finditer(arguments))
        assert not any(part[2] for part in parts), "strace cut the data short"
        data = b"".join(_decode(part[1]) for part in parts)[:count]
        if path == EVENTS:
            yield Said(json.loads(data))
        elif name == "pwrite64":
            yield Write(path, int(arguments.rsplit(",", 1)[1]), data)
        else:  # a KeyError would mean that another process opened it, whose position is not known
            offset = self._offsets[descriptor]
            self._offsets[descriptor] += count
            yield Write(path, offset, data)

    def _read_descriptor_call(self, name: str, arguments: str) -> Iterator[Call]:
        path = self._descriptor_path(arguments)
        if path is None or path == EVENTS:
            return
        numbers = [int(number) for number in re.findall(r", (\d+)", arguments)]
        if name == "ftruncate":
            yield Resize(path, numbers[0])
        elif name == "fallocate":  # (descriptor, mode, offset, length)
            assert numbers[0] == 0, f"fallocate with mode {numbers[0]} is not modelled"
            yield Resize(path, numbers[1] + numbers[2], grow_only=True)
        else:
            yield Sync(path)

    def _read_path_call(self, name: str, arguments: str) -> Iterator[Call]:
        folders = [_decode(match[1]) for match in _OPENED.finditer(arguments)]
        names = [_decode(match[1]) for match in _QUOTED.finditer(arguments)]
        bases = folders if len(folders) == len(names) else [os.fsencode(self._root)] * len(names)
        paths = [self._relative(os.path.join(base, name)) for base, name in zip(bases, names, strict=True)]
        if all(path is None for path in paths):
            return
        first = paths[0]
        assert first is not None, f"{name}: from outside the workspace"
        if name.startswith("rename"):
            assert paths[1] is not None, f"{name}: to outside the workspace"
            yield Rename(first, paths[1])
        elif name.startswith("mkdir"):
            yield MakeFolder(first)
        elif name in ("unlink", "unlinkat", "rmdir"):
            yield Remove(first)
        else:
            raise AssertionError(f"{name} is not modelled")

    def _descriptor_path(self, arguments: str) -> str | None:
        match = re.match(r"\d+" + _OPENED.pattern + r"(?!\(deleted\))", arguments)
        return self._relative(_decode(match[1])) if match else None

    def _relative(self, path: bytes) -> str | None:
        """The path in the workspace, "." for itself; None for what is no part of the job's state."""
        relative = os.path.relpath(os.path.normpath(os.fsdecode(path)), self._root)
        return relative if relative in (".", EVENTS) or relative.split("/")[0] in KEPT else None


def _decode(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
