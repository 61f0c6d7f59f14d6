"""What a prediction rests on beyond its table, and what it costs where that does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from anima_batch.board.choice import Choice
from anima_batch.board.course import Conditions
from anima_batch.board.simulation import Simulation, simulate
from anima_batch.board.table import BRANCHES, Branches, Table

LOAD, HOST, RUN = ("load_seconds",), ("prepare_seconds", "finish_seconds"), ("run_seconds",)
HOST_OUTSIDE = 2 / 3  # of the board's host seconds: one block's maths was published, and is a third of them


@dataclass(frozen=True)
class Assumption:
    """What is taken for granted, what may be so instead, and the table and conditions of that."""

    holds: str
    otherwise: str
    change: Callable[[Table], Table] = lambda table: table
    conditions: Conditions | None = None


@dataclass(frozen=True)
class Weighed:
    """An assumption, the seconds of an image without it, and how many more that is."""

    assumption: Assumption
    denoise_seconds: float
    added_seconds: float


def weigh_assumptions(found: Simulation) -> Iterator[Weighed]:
    """Each assumption of a simulation dropped alone."""
    for assumption in list_assumptions(found.choice):
        table = assumption.change(found.table)
        seconds = simulate(table, found.passes, found.choice, assumption.conditions).denoise_seconds
        yield Weighed(assumption, seconds, seconds - found.denoise_seconds)


def list_assumptions(choice: Choice) -> list[Assumption]:
    """Those that a choice rests on; what never overlaps needs the first few only."""
    alone = [
        Assumption("a run takes as long as in the table", "10 % longer, as when it gets hot", _times(1.1, RUN)),
        Assumption("the host's work takes as long as in the table", "twice as long", _times(2, HOST)),
        Assumption("files are read as fast as in the table", "half as fast", _times(2, LOAD)),
    ]
    if choice.staging != "ahead" and not choice.interleave:
        return alone
    beside = [
        Assumption("work side by side slows nothing (memory bandwidth)", "all of it takes 10 % longer", _slow(1.1)),
        Assumption(
            "the host works between runs, as evenly as in the table",
            "two thirds of it before the first and after the last",
            _move_host_outside,
        ),
        Assumption(
            "sessions open and close while the host computes (Python's lock is free in both)",
            "one at a time",
            conditions=Conditions(one_lock=True),
        ),
    ]
    if choice.staging == "ahead":
        holds = "sessions open and close while the accelerator runs (the driver allows it)"
        beside.append(Assumption(holds, "one at a time", conditions=Conditions(exclusive_driver=True)))
    if choice.cores > 1:
        holds = "two cores run as fast side by side as each alone (memory bandwidth)"
        beside.append(Assumption(holds, "what overlaps takes 25 % longer", _slow(1.25)))
    return [*alone, *beside]


def _times(factor: float, keys: Sequence[str]) -> Callable[[Table], Table]:
    def change(table: Table) -> Table:
        branches = {
            branch: (times := table.times(branch)).model_copy(
                update={key: factor * getattr(times, key) for key in keys}
            )
            for branch in BRANCHES
        }
        return table.model_copy(update={"branches": Branches(**branches)})

    return change


def _slow(factor: float) -> Callable[[Table], Table]:
    return lambda table: table.model_copy(update={"overlap_slowdown": table.overlap_slowdown * factor})


def _move_host_outside(table: Table) -> Table:
    calls = 2 * table.blocks * sum(getattr(table.times(branch), key) for branch in BRANCHES for key in HOST)
    moved = HOST_OUTSIDE * calls / 2
    outside = {"begin_seconds": table.begin_seconds + moved, "end_seconds": table.end_seconds + moved}
    return _times(1 - HOST_OUTSIDE, HOST)(table).model_copy(update=outside)
