"""When the sessions of a model's graphs are open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from anima_batch.backends.base import Array, Session
from anima_batch.backends.memory_gate import MemoryGate
from anima_batch.backends.stager import Stager


class Staging:
    """Hands out sessions by role, one pass over the roles in their order after the other.

    Those in `keep` stay open after their first use: all of them are a resident model, some a pinned one. The others are
    opened when they are used and closed after it; with `ahead_bytes` a thread opens the next ones while one runs, up to
    so many bytes of files. `files` are the graphs' in the order of a pass. Once the gate finds memory short, nothing is
    open any more but what is in use, and `fallback` says why.
    """

    def __init__(
        self,
        open_session: Callable[[str], Session],
        keep: Collection[str] = (),
        *,
        ahead_bytes: int = 0,
        files: Mapping[str, Path] | None = None,
        gate: MemoryGate | None = None,
    ) -> None:
        self._open = open_session
        self._keep = frozenset(keep)
        self._ahead_bytes = ahead_bytes
        self._files = files or {}
        roles = list(self._files)
        self._following = dict(zip(roles, [*roles[1:], *roles[:1]], strict=True))
        self._gate = gate
        self.kept: dict[str, Session] = {}
        self.fallback: str | None = None

    @contextlib.contextmanager
    def walk(self, roles: Sequence[str], uses: int = 1) -> Iterator[Walk]:
        """A pass over the roles, each of which is run so many times; at its end all but the kept are closed."""
        walk = Walk(self, roles, uses)
        try:
            yield walk
        except BaseException:
            with contextlib.suppress(Exception):  # the first fault is the one to tell
                walk.close()
            raise
        walk.close()

    @contextlib.contextmanager
    def session(self, role: str) -> Iterator[Session]:
        """An open session for the block's length."""
        with self.walk([role]) as walk:
            yield walk.take(role)

    def close(self) -> None:
        """Close what was kept."""
        for session in self.kept.values():
            session.close()
        self.kept.clear()

    def make_stager(self, roles: Sequence[str]) -> Stager | None:
        """The thread that opens a pass's graphs ahead; None where they are opened as they are used."""
        if not self._ahead_bytes or self.is_short():
            return None
        sizes = {role: _file_bytes(self._files.get(role)) for role in roles}
        return Stager(sizes, self._ahead_bytes, lambda role: None if self.is_short() else self.open(role))

    def is_kept(self, role: str) -> bool:
        """Whether a session of the role is to stay open."""
        return role in self._keep and not self.fallback

    def is_short(self) -> bool:
        """Whether memory is too short, now or before, for anything to be open that is not in use."""
        is_modest = not self._keep and not self._ahead_bytes
        if self.fallback is None and not is_modest and self._gate and (shortage := self._gate.find_shortage()):
            self.fallback = f"staging fell back to on-demand: {shortage}"
        return self.fallback is not None

    def open(self, role: str) -> Session:
        """A session of the role; meanwhile the system begins to read the file of the one after it."""
        if following := self._files.get(self._following.get(role, "")):
            _read_ahead(following)
        return self._open(role)


class Walk:
    """A pass at work: the sessions that are open for it, given to as many threads as there are cores.

    A role is always run by the same of these threads.
    """

    def __init__(self, staging: Staging, roles: Sequence[str], uses: int) -> None:
        self._staging = staging
        self._left = dict.fromkeys(roles, uses)
        self._open: dict[str, Session] = {}
        self._lock = Lock()
        self._stager = staging.make_stager(roles)
        if staging.is_short():
            self._drop_kept()

    def run(self, role: str, feeds: Mapping[str, Array]) -> Array:
        """The graph's output; after its last run of the pass a session that is not kept is closed."""
        try:
            return self.take(role).run(feeds)
        finally:
            self._left[role] -= 1
            if not self._left[role]:
                self._release(role)

    def take(self, role: str) -> Session:
        """The role's open session."""
        with self._lock:
            if role not in self._open and role in self._staging.kept:
                self._open[role] = self._staging.kept[role]
            if role in self._open:
                return self._open[role]
        session = self._stager.take(role) if self._stager else None
        if self._staging.is_short():
            self._drop_kept()
        session = session or self._staging.open(role)
        with self._lock:
            self._open[role] = session
            if self._staging.is_kept(role):
                self._staging.kept[role] = session
        return session

    def close(self) -> None:
        """Close what is open and not kept; raises what closing raised."""
        with contextlib.ExitStack() as closings:
            if self._stager:
                closings.callback(self._stager.close)  # the last of them
            for role in list(self._open):
                closings.callback(self._release, role)

    def _release(self, role: str) -> None:
        with self._lock:
            session = self._open.pop(role, None)
            if session is None or self._staging.kept.get(role) is session:
                return
        if self._stager:
            self._stager.close_behind(session)
        else:
            session.close()

    def _drop_kept(self) -> None:
        """Close what was kept; what is in use is closed after it."""
        with self._lock:
            kept = {**self._staging.kept}
            self._staging.kept.clear()
            for role, session in kept.items():
                if role not in self._open:
                    session.close()


def _file_bytes(path: Path | None) -> int:
    try:
        return 0 if path is None else path.stat().st_size
    except OSError:  # told when it is opened
        return 0


def _read_ahead(path: Path) -> None:
    """Let the system fill its page cache with the file, beside whatever else goes on."""
    with contextlib.suppress(OSError):  # told when it is opened
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
