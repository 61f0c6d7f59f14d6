"""The mount table: which file system holds a folder, and with which options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system; the options are the mount's own and its file system's."""

    point: str
    kind: str
    source: str
    options: frozenset[str]

    def option(self, name: str) -> str | None:
        """The value of `name=value`; None where it is not given."""
        prefix = f"{name}="
        return next((option[len(prefix) :] for option in self.options if option.startswith(prefix)), None)


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The lines of /proc/self/mountinfo, or of /proc/mounts; those that are neither are passed over."""
    return tuple(_parse(text))


def _parse(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, end = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and len(end) >= 2:
            options = ",".join([fields[5], *end[2:3]])
            yield _make(fields[4], end[0], end[1], options)
        elif not dash and len(fields) >= 4 and fields[1].startswith("/"):
            yield _make(fields[1], fields[2], fields[0], fields[3])


def _make(point: str, kind: str, source: str, options: str) -> Mount:
    return Mount(_unescape(point), kind, _unescape(source), frozenset(map(_unescape, options.split(","))))


def _unescape(text: str) -> str:
    r"""Blanks and backslashes stand as \040 and the like."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def find_mount(mounts: Iterable[Mount], folder: str) -> Mount | None:
    """The mount that an absolute path lies on: the deepest, and of those at one point the last, which hides others."""
    best: Mount | None = None
    for mount in mounts:
        below = mount.point if mount.point.endswith("/") else f"{mount.point}/"
        holds = folder == mount.point or folder.startswith(below)
        if holds and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
