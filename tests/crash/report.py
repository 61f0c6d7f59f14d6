"""What a method of cutting a job short found, and the one table of them all."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

COLUMNS = ("method", "file system / metadata order", "states", "bad", "controls caught", "seconds")
EXAMPLES_KEPT = 5


@dataclass(frozen=True)
class Result:
    """One line of the table: `states` cut jobs were looked at, `bad` of them were not as promised.

    `controls` has, for each deliberately broken writer, how many of its states were found bad: none means that the
    method cannot see what it claims to see. `examples` describes the first bad states.
    """

    method: str
    variant: str
    states: int
    bad: int
    controls: Mapping[str, int]
    seconds: float
    examples: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def caught(self) -> int:
        """Broken writers that were found out."""
        return sum(bad > 0 for bad in self.controls.values())

    @property
    def passed(self) -> bool:
        """Whether nothing was bad and every broken writer was found out."""
        return self.states > 0 and self.bad == 0 and self.caught == len(self.controls)


@dataclass(frozen=True)
class Scale:
    """How much of the whole is done, the seed of what is drawn, and an empty folder for everything that is written."""

    share: float
    seed: int
    scratch: Path

    def of(self, whole: int) -> int:
        """So many of what the whole run does so many of."""
        return max(1, round(whole * self.share))

    def draw(self, what: str) -> random.Random:
        """Random numbers that depend on the seed and on what they are for."""
        return random.Random(f"{self.seed} {what}")


def tell(text: str) -> None:
    """A line on stderr about how far a long method has come."""
    print(text, file=sys.stderr, flush=True)


Method: TypeAlias = Callable[[Scale], Iterator[Result]]


class Tally:
    """Counts states, and the bad ones among them by the kind of their faults."""

    def __init__(self) -> None:
        self.states = 0
        self.bad = 0
        self.kinds: dict[str, int] = {}
        self.examples: list[str] = []

    def add(self, faults: Iterable[Fault], where: str) -> None:
        """One more state; `where` says which in words that let it be made again."""
        self.states += 1
        if not (found := tuple(faults)):
            return
        self.bad += 1
        for kind in sorted({fault.kind for fault in found}):
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(f"{where}: {'; '.join(f'{fault.kind}: {fault.text}' for fault in found)}")


@dataclass(frozen=True)
class Fault:
    """A way in which a state breaks the promise.

    kind: "torn" (a file under its final name that is not whole), "accepted" (such a file taken as good), "lost" (a
    finished picture), "repeated" (more than one step), "stuck" (the same command does not go on), "other bits".
    """

    kind: str
    text: str


def result_json(result: Result) -> dict[str, Any]:
    """Plain JSON, with the counts of the table's line."""
    counts = {"controls_caught": result.caught, "controls_of": len(result.controls), "passed": result.passed}
    return {**dataclasses.asdict(result), **counts}


def format_table(results: Iterable[Result]) -> str:
    """The results as a table with a line of sums, then what was wrong."""
    results = tuple(results)
    rows = [COLUMNS, *map(_cells, results), _sum_cells(results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = [_join(row, widths) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    for result in results:
        lines += [f"BAD: {result.method}, {result.variant}: {example}" for example in result.examples]
        missed = [name for name, bad in result.controls.items() if not bad]
        lines += [f"NOT CAUGHT: {result.method}, {result.variant}: {name}" for name in missed]
    return "\n".join(lines)


def _cells(result: Result) -> tuple[str, ...]:
    controls = f"{result.caught}/{len(result.controls)}"
    return result.method, result.variant, f"{result.states:,}", f"{result.bad:,}", controls, f"{result.seconds:.0f}"


def _sum_cells(results: tuple[Result, ...]) -> tuple[str, ...]:
    caught, of = sum(result.caught for result in results), sum(len(result.controls) for result in results)
    states, bad = sum(result.states for result in results), sum(result.bad for result in results)
    seconds = sum(result.seconds for result in results)
    return "all", "", f"{states:,}", f"{bad:,}", f"{caught}/{of}", f"{seconds:.0f}"


def _join(row: tuple[str, ...], widths: list[int]) -> str:
    """Texts to the left, numbers to the right."""
    padded = (
        cell.ljust(width) if n < 2 else cell.rjust(width)
        for n, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(padded).rstrip()
