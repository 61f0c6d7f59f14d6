"""When the sessions of a model's graphs are open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

from anima_batch.backends.base import Session


class Staging:
    """Hands out sessions by role: those in `keep` stay open after their first use, the others close after each.

    With nothing kept this is staging on demand; with all kept the model is resident; in between it is pinned.
    """

    def __init__(self, open_session: Callable[[str], Session], keep: Collection[str] = ()) -> None:
        self._open = open_session
        self._keep = frozenset(keep)
        self._kept: dict[str, Session] = {}

    @contextlib.contextmanager
    def session(self, role: str) -> Iterator[Session]:
        """An open session for the block's length."""
        if role in self._keep:
            if role not in self._kept:
                self._kept[role] = self._open(role)
            yield self._kept[role]
            return
        session = self._open(role)
        try:
            yield session
        finally:
            session.close()

    def close(self) -> None:
        """Close what was kept."""
        for session in self._kept.values():
            session.close()
        self._kept.clear()
