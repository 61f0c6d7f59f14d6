"""The job of one image that makes a picture again, in a workspace of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anima_batch.audit import compare_model_set
from anima_batch.errors import ModelSetError, ModelSetNotFoundError
from anima_batch.files import make_folder, write_atomic
from anima_batch.job import built_in_policies, render_job, request_json
from anima_batch.model_set import (
    FILE_NAME,
    ModelSet,
    find_by_digest,
    scan_model_sets,
    seal_model_set,
    verify_model_set,
    write_description,
)
from anima_batch.reproduce.original import Original

JOB_NAME = "reproduction"


@dataclass(frozen=True)
class Undertaking:
    """A job that waits to be run; `model_set_differences` has a line for each way in which its model set is another."""

    job: Path
    workspace: Path
    model_set: ModelSet
    model_set_differences: tuple[str, ...]
    flags: dict[str, Any]

    @property
    def manifests(self) -> Path:
        """Where the manifest of the new picture will be."""
        return self.workspace / "manifests" / JOB_NAME


def prepare_run(original: Original, workspace: Path, folder: Path, *, allow_different: bool) -> Undertaking:
    """Write the job into `folder`, which becomes its workspace, for the model set found in `workspace`.

    Raises ModelSetNotFoundError, and ModelSetError for a set that is not the recorded one, or whose files are not what
    they were, unless `allow_different`: then the files are used as they are, sealed anew in the folder.
    """
    model_set, differences = _find_set(original, workspace)
    if differences:
        if not allow_different:
            advice = "restore it, or see how far another picture is with --allow-different"
            raise ModelSetError(*differences, f"{model_set.folder}: not the model set that made it: {advice}")
        model_set = _seal_as_it_is(model_set, folder / "models" / JOB_NAME)
    name = original.policy_name or _built_in_name(original) or "original"
    text = render_job(
        [request_json(original.request) | {"policy": name}],
        head={"name": JOB_NAME, "model_set": str(model_set.folder.resolve()), "backend": _choose_backend(original)},
        policies={name: original.request.policy},
        comments=[f"Makes {original.path.name} again"],
    )
    job = folder / "jobs" / f"{JOB_NAME}.toml"
    make_folder(job.parent)
    write_atomic(job, text.encode())
    return Undertaking(job, folder, model_set, tuple(differences), _run_flags(original))


def _find_set(original: Original, workspace: Path) -> tuple[ModelSet, list[str]]:
    """The set with the digest whose files are whole; else the nearest to it, with what is wrong."""
    broken: tuple[ModelSet, list[str]] | None = None
    for model_set in find_by_digest(original.model_set_digest, workspace):
        if not (problems := verify_model_set(model_set)):
            return model_set, []
        broken = broken or (model_set, problems)
    if broken is not None:
        return broken
    scan = scan_model_sets(workspace)
    namesake = next((entry for entry in scan.sets if entry.name == original.model_set_name), None)
    if namesake is None:
        raise ModelSetNotFoundError(
            f"{original.path}: made with model set {original.model_set_name} ({original.model_set_digest}), which is "
            f"not in {workspace / 'models'} under any name: put it there",
            *scan.problems,
        )
    other = f"{namesake.folder}: digest must be {original.model_set_digest}, got {namesake.digest}"
    record = original.manifest.model_set if original.manifest else None
    parts = compare_model_set(record, namesake, original.path) if record else []
    return namesake, [other, *parts]


def _seal_as_it_is(model_set: ModelSet, folder: Path) -> ModelSet:
    """The same files by links, under digests that they have now."""
    for part in model_set.description.components:
        link = folder / part.path
        make_folder(link.parent)
        if not os.path.lexists(link):
            link.symlink_to((model_set.folder / part.path).resolve())
    make_folder(folder)
    if (folder / FILE_NAME).exists():
        (folder / FILE_NAME).unlink()
    return seal_model_set(write_description(folder, model_set.description))


def _built_in_name(original: Original) -> str | None:
    policy = original.request.policy
    return next((name for name, known in built_in_policies().items() if known == policy), None)


def _choose_backend(original: Original) -> str:
    """A picture of the CPU is made on the CPU; one of the NPU there where it can be, and the report says where not."""
    manifest = original.manifest
    return "onnx" if manifest is not None and manifest.environment.core_mask is None else "auto"


def _run_flags(original: Original) -> dict[str, Any]:
    mask = original.manifest.environment.core_mask if original.manifest else None
    return {} if mask is None else {"core_mask": mask}
