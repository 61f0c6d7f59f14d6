"""How a computed step can be staged and ordered."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

from anima_batch.board.table import Table
from anima_batch.errors import UsageError

Staging = Literal["on-demand", "ahead", "pinned", "resident", "cached"]


@dataclass(frozen=True)
class Choice:
    """One way to run a step.

    `pinned`: sessions that stay open (pinned: the first ones, cached: the last used). `ahead_bytes`: of the files that
    the stager opens before they are needed; one may be larger. `interleave`: the host works for one CFG stream while
    the accelerator runs the other. With two cores attention runs on the first and mlp on the
    second; with `contexts_per_stream` each stream has a core and sessions of its own.
    """

    staging: Staging = "on-demand"
    interleave: bool = False
    cores: int = 1
    pinned: int = 16
    ahead_bytes: int = 128 << 20
    contexts_per_stream: bool = False

    @property
    def name(self) -> str:
        """In a few words."""
        staging = f"{self.staging} {self.pinned}" if self.staging in ("pinned", "cached") else self.staging
        cores = "" if self.cores == 1 else f", {self.cores} cores"
        contexts = ", a context a stream" if self.contexts_per_stream else ""
        return f"{staging}, {'interleaved' if self.interleave else 'plain'}{cores}{contexts}"


def make_choice(
    table: Table, staging: Staging, *, interleave: bool | None = None, cores: int = 1, pinned: int = 16
) -> Choice:
    """The choice; on demand the plain order is meant, as published, elsewhere interleaving. Raises UsageError."""
    if not 1 <= cores <= min(2, table.cores):
        raise UsageError(f"--cores: must be 1 to {min(2, table.cores)} on {table.name}, got {cores}")
    return Choice(staging, staging != "on-demand" if interleave is None else interleave, cores, pinned)


def list_choices(table: Table, pinned: int = 16) -> list[Choice]:
    """All that are worth a line, the published way first."""
    stagings: tuple[Staging, ...] = ("on-demand", "cached", "pinned", "resident", "ahead")
    choices = [
        Choice(staging, interleave, pinned=pinned) for staging, interleave in itertools.product(stagings, (False, True))
    ]
    if table.cores > 1:
        choices += [Choice("ahead", interleave=True, cores=2, contexts_per_stream=each) for each in (False, True)]
    return choices
