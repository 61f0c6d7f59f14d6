"""What a job asks of the machine it is to run on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anima_batch import batch
from anima_batch.batch import Batch
from anima_batch.doctor.check import Status

NPU_SUFFIX, CPU_SUFFIX = ".rknn", ".onnx"

# What `built_with` calls the converter's version and the chip it built for.
_TOOLKIT_KEYS = ("rknn_toolkit2", "rknn-toolkit2", "toolkit")
_TARGET_KEYS = ("target_platform", "target")


@dataclass(frozen=True, slots=True)
class Need:
    """What the pictures take; `disk_bytes` and `images` are None where no job was named.

    `npu`: "required" where the job stops without it, "wanted" where it would fall back to the CPU, "unused".
    `held_bytes` lie on the disk already and are part of `disk_bytes`.
    """

    outputs: str
    npu: Literal["required", "wanted", "unused"] | None = None
    backend: str = "auto"
    core_mask: str = "0"
    graphs: int = 0
    toolkits: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    images: int | None = None
    disk_bytes: int | None = None
    held_bytes: int = 0

    @property
    def severity(self) -> Status:
        """How bad it is that the NPU cannot be used."""
        if self.npu == "required":
            return "fail"
        return "warn" if self.npu == "wanted" else "ok"


def need_of_job(job: Path, workspace: Path, *, lite2: bool) -> Need:
    """Of a job file; raises JobError and the other errors of `plan`. `lite2`: whether its package is installed."""
    opened = batch.open_batch(job, workspace, draw=False)
    plan = batch.plan_batch(opened, batch.survey(opened))
    parts = [part for part in opened.model_set.description.components if part.key[1] == NPU_SUFFIX]
    pending = plan.pending
    return Need(
        outputs=os.path.abspath(opened.outputs),
        npu=_npu_use(opened, lite2=lite2),
        backend=opened.spec.backend,
        core_mask=opened.spec.run.core_mask,
        graphs=len(parts),
        toolkits=_values(_TOOLKIT_KEYS, *(part.built_with for part in parts)),
        targets=_values(_TARGET_KEYS, *(part.built_with for part in parts)),
        images=len(pending),
        disk_bytes=plan.disk_bytes,
        held_bytes=_folder_bytes(opened.checkpoint(pending[0].request_id)) if pending else 0,
    )


def need_of_workspace(workspace: Path) -> Need:
    """Where no job is named: what can be told is how well the machine suits any."""
    return Need(outputs=os.path.abspath(workspace / "outputs"))


def _npu_use(opened: Batch, *, lite2: bool) -> Literal["required", "wanted", "unused"]:
    """As the model is opened: "auto" takes the NPU where lite2 is installed and the set has graphs for it."""
    if opened.spec.backend == "rknn":
        return "required"
    if opened.spec.backend == "onnx" or not opened.model_set.has(NPU_SUFFIX):
        return "unused"
    roles = (part.key for part in opened.model_set.description.components if part.role.startswith("transformer."))
    on_cpu = any(suffix == CPU_SUFFIX for _, suffix in roles)
    return "wanted" if on_cpu and not lite2 else "required"


def _values(keys: tuple[str, ...], *records: Mapping[str, str]) -> tuple[str, ...]:
    """The different values, in the order in which they come; of each record the first key that it has."""
    found = (next((record[key] for key in keys if key in record), None) for record in records)
    return tuple(dict.fromkeys(value for value in found if value is not None))


def _folder_bytes(folder: Path) -> int:
    """Of what lies in it; as the runner counts before it starts."""
    try:
        return sum(path.lstat().st_size for path in folder.iterdir())
    except OSError:
        return 0
