"""How long a request may take before its process is taken for hung."""

from __future__ import annotations

import math
from typing import Literal

Kind = Literal["open", "encode", "find_warnings", "prepare", "step", "forecast", "decode"]

MARGIN = 5.0  # times the slowest so far: another size's overhead, a busy machine, a card that stalls

# Nothing is known before the first answer. Published for the board at 512x512: up to 120 s a step and 2,154 s a decode.
FIRST_SECONDS: dict[Kind, float] = {
    "open": 600,
    "encode": 1800,
    "find_warnings": 600,
    "prepare": 600,
    "step": 10 * 120,
    "forecast": 600,
    "decode": 5 * 2154,
}
FIRST_WORK: dict[Kind, float] = {"step": 2 * 512 * 512, "decode": 512 * 512}  # what those figures are for


class Deadlines:
    """Seconds allowed for each kind of request, learned from the answers of the job.

    A step that is forecast is a kind of its own: it says nothing about one that runs the transformer. `work` is the
    size of a request: texts to encode, pixels to decode, passes times pixels of a step. More work than was ever
    measured gets proportionally more time; less work never gets less, since loading a graph takes the same.
    """

    def __init__(self, floor_seconds: float) -> None:
        self._floor = floor_seconds
        self._slowest: dict[Kind, dict[float, float]] = {}  # kind -> work -> seconds
        self._misses: dict[Kind, int] = {}

    def allow(self, kind: Kind, work: float) -> float:
        """For the next request; twice as much after each miss in a row, since slow is not dead."""
        if measured := self._slowest.get(kind):
            seconds = MARGIN * max(took * max(1.0, work / size) for size, took in measured.items())
        else:
            seconds = FIRST_SECONDS[kind] * max(1.0, work / FIRST_WORK.get(kind, math.inf))
        return float(max(self._floor, seconds) * 2 ** self._misses.get(kind, 0))

    def learn(self, kind: Kind, work: float, seconds: float) -> None:
        """A request of that size was answered."""
        measured = self._slowest.setdefault(kind, {})
        measured[work] = max(seconds, measured.get(work, 0.0))
        self._misses.pop(kind, None)

    def miss(self, kind: Kind) -> None:
        """A request was not answered in time."""
        self._misses[kind] = self._misses.get(kind, 0) + 1
