"""When a job will be done that several boards make, each at a speed of its own; pure."""

from __future__ import annotations

from collections.abc import Container, Iterable

from anima_batch.fleet.boards import BoardState
from anima_batch.plan import Rates, Workload


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


def estimate_batch(
    left: Workload, rates: Rates, ready: Iterable[BoardState], busy: Container[str | None]
) -> float | None:
    """Seconds until all images are done, from each board's own speed, else from `rates`; None while one is not known.

    `left` is what nobody has begun, `busy` the names of boards that have an image at hand.
    """
    boards = []
    for board in ready:
        alone = left.estimate(board.rates if board.rates.measurements else rates)
        if alone is None:
            return None
        boards.append((board.seconds_left if board.name in busy else 0.0, alone))
    return estimate_end(boards)
