"""The thread that opens the next graphs while one runs, and closes the last one behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from anima_batch.backends.base import Session

DEPTH = 2  # graphs opened before anyone uses them: a short run between two long ones hides no whole lifecycle


class Stager:
    """Opens the sessions of one pass in the order of `sizes`, which has each role's bytes; `take` waits for one.

    At most two sessions wait to be taken, and one alone where two would be more than `limit_bytes`. Since a thread does
    one thing after the other, a session that was given back is closed before another is opened. `open_ahead` gives None
    for a role that had better not be opened before its time.
    """

    def __init__(self, sizes: Mapping[str, int], limit_bytes: int, open_ahead: Callable[[str], Session | None]) -> None:
        self._limit_bytes = limit_bytes
        self._open_ahead = open_ahead
        self._lock = Lock()  # two cores may take at a time
        self._sizes = sizes
        self._coming = deque(sizes)
        self._ahead: dict[str, Future[Session | None]] = {}
        self._closings: list[Future[None]] = []
        self._thread = ThreadPoolExecutor(1, "stager")
        self._fill()

    def take(self, role: str) -> Session | None:
        """The role's session, waited for; raises what opening it raised. None: the caller is to open it."""
        with self._lock:
            future = self._ahead.pop(role, None)
            self._fill()
        return None if future is None else future.result()

    def close_behind(self, session: Session) -> None:
        """Close a session that is not needed any more, some time soon."""
        self._closings.append(self._thread.submit(session.close))

    def close(self) -> None:
        """End the thread and close what nobody took; raises what closing a session raised."""
        for future in self._ahead.values():
            future.cancel()
        self._thread.shutdown()
        for future in self._ahead.values():
            if not future.cancelled() and future.exception() is None and (session := future.result()) is not None:
                session.close()
        for closing in self._closings:
            closing.result()

    def _fill(self) -> None:
        while self._coming and self._has_room(self._coming[0]):
            role = self._coming.popleft()
            self._ahead[role] = self._thread.submit(self._open_ahead, role)

    def _has_room(self, role: str) -> bool:
        if not self._ahead:
            return True
        waiting = sum(self._sizes[other] for other in self._ahead)
        return len(self._ahead) < DEPTH and waiting + self._sizes[role] <= self._limit_bytes
