"""The recorded trees of other machines, and their judgement."""

from __future__ import annotations

from pathlib import Path

from anima_batch.doctor import Check, judge
from anima_batch.doctor.machine import read_machine
from anima_batch.doctor.need import Need
from anima_batch.doctor.process import Process, Space
from anima_batch.doctor.tree import Tree

TREES = Path(__file__).parent / "doctor" / "trees"
BOARD = Process("aarch64", (3, 11), "2.3.2", 1_790_000_000.0, True, Space(50_000_000_000, 1_000_000))
PC = Process("x86_64", (3, 12), None, 1_790_000_000.0, True, Space(50_000_000_000, 1_000_000))
OUTPUTS = "/home/radxa/anima/outputs"


class Examined(dict[str, Check]):
    """The checks by name."""

    def statuses(self) -> dict[str, str]:
        return {name: check.status for name, check in self.items() if check.status != "ok"}


def examine_tree(
    root: Path, process: Process | None = BOARD, need: Need | None = None, outputs: str = OUTPUTS
) -> Examined:
    checks = judge(read_machine(Tree(root)), process, need or Need(outputs=outputs), outputs)
    return Examined({check.name: check for check in checks})
