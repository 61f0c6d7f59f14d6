"""When a job will be done that several boards make, each at a speed of its own; pure."""

from __future__ import annotations

from collections.abc import Iterable


def estimate_end(boards: Iterable[tuple[float, float]]) -> float | None:
    """Seconds until all is made; None where there is no board.

    Each board is (seconds until it is free, seconds that it would need for all that nobody has begun, alone): from when
    it is free it takes its part of that.
    """
    free = sorted(boards)
    if not free:
        return None
    share, behind, end = 0.0, 0.0, free[0][0]
    for index, (start, alone) in enumerate(free):
        if alone <= 0:  # nothing is left to begin
            return free[-1][0]
        share += 1 / alone
        behind += start / alone
        end = (1 + behind) / share
        if index + 1 < len(free) and end <= free[index + 1][0]:  # it is done before the next one is free
            break
    return max(end, free[-1][0])
