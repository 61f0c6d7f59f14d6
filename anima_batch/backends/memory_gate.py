"""When graphs that are open before or after their use must make room."""

from __future__ import annotations

import time

from anima_batch.environment import available_bytes, swapped_bytes

MIB = 1 << 20
LOOK_SECONDS = (
    0.1  # between two looks, each of which takes up to a millisecond; opening a graph of any size takes longer
)


class MemoryGate:
    """Watches the memory that can still be had, and the growth of swap since it was made."""

    def __init__(self, min_available_bytes: int, max_swap_growth_bytes: int) -> None:
        self._min_available = min_available_bytes
        self._max_swap_growth = max_swap_growth_bytes
        self._swapped_before = swapped_bytes()
        self._next_look = 0.0

    def find_shortage(self) -> str | None:
        """What is short, in words; None while there was enough when it was last looked at."""
        if time.monotonic() < self._next_look:
            return None
        if (available := available_bytes()) < self._min_available:
            return f"{available / MIB:.0f} MiB of memory were available, wanted are {self._min_available / MIB:.0f}"
        if (growth := swapped_bytes() - self._swapped_before) > self._max_swap_growth:
            return f"swap grew by {growth / MIB:.0f} MiB, allowed are {self._max_swap_growth / MIB:.0f}"
        self._next_look = time.monotonic() + LOOK_SECONDS
        return None
