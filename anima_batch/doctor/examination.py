"""The whole examination: read a machine, then judge it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from anima_batch.doctor.check import Check
from anima_batch.doctor.host import judge_host
from anima_batch.doctor.machine import Machine, read_machine
from anima_batch.doctor.need import Need, need_of_job, need_of_workspace
from anima_batch.doctor.npu import is_known_chip, judge_npu
from anima_batch.doctor.process import Process, existing_folder, installed_lite2, read_process
from anima_batch.doctor.software import judge_software
from anima_batch.doctor.storage import judge_storage
from anima_batch.doctor.tree import Tree


def examine(job: Path | None, workspace: Path, root: Path = Path("/")) -> tuple[Check, ...]:
    """The checks of this machine, or of a tree copied from another; raises the errors of `plan` for a job's faults.

    A copied tree has no process: what only one can tell is a warning then.
    """
    tree = Tree(root)
    machine = read_machine(tree)
    if job is None:
        need = need_of_workspace(workspace)
    else:
        need = need_of_job(job, workspace, lite2=not tree.live or installed_lite2() is not None)
    if tree.live:
        return judge(machine, read_process(need.outputs), need, existing_folder(need.outputs))
    return judge(machine, None, need, need.outputs)


def judge(machine: Machine, process: Process | None, need: Need, outputs: str) -> tuple[Check, ...]:
    """The checks, in a fixed order and all of them always; pure. `outputs` is the folder's path in the mount table.

    Where no job is named, a board with the right chip is taken to be there for its NPU.
    """
    if need.npu is None:
        need = replace(need, npu=_expected_use(machine))
    return (
        *judge_npu(machine, need),
        *judge_software(machine, process, need),
        *judge_host(machine, process, need),
        *judge_storage(machine, process, outputs, need),
    )


def _expected_use(machine: Machine) -> Literal["required", "wanted", "unused"]:
    if is_known_chip(machine):
        return "required"
    # A container may see the driver and not the device tree, which then is to be passed into it.
    told = machine.compatible.text or (machine.compatible.absent and not machine.vendor_driver)
    return "unused" if told else "wanted"
