"""The job of one image that makes a picture again, in a workspace of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anima_batch.audit import compare_model_set
from anima_batch.errors import ModelSetError, ModelSetNotFoundError, UsageError
from anima_batch.files import make_folder, read_bounded, write_atomic
from anima_batch.job import JOB_BYTES, POLICY_NAME, built_in_policies, render_job, request_json
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
    if differences and not allow_different:
        advice = "restore it, or see how far another picture is with --allow-different"
        raise ModelSetError(*differences, f"{model_set.folder}: not the model set that made it: {advice}")
    place = folder / "models" / JOB_NAME if differences else model_set.folder
    name = _name_policy(original)
    text = render_job(
        [request_json(original.request) | {"policy": name}],
        head={"name": JOB_NAME, "model_set": str(place.resolve()), "backend": _choose_backend(original)},
        policies={name: original.request.policy},
        comments=[f"Makes {original.path.name} again"],
    )
    job = folder / "jobs" / f"{JOB_NAME}.toml"
    _check_free(folder, job, text, original)
    make_folder(job.parent)
    write_atomic(job, text.encode())
    if differences:
        model_set = _seal_as_it_is(model_set, place)
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
        if link.is_symlink():  # of an earlier try, perhaps to another set
            link.unlink()
        if not os.path.lexists(link):
            link.symlink_to((model_set.folder / part.path).resolve())
    make_folder(folder)
    if (folder / FILE_NAME).exists():
        (folder / FILE_NAME).unlink()
    return seal_model_set(write_description(folder, model_set.description))


def _check_free(folder: Path, job: Path, text: str, original: Original) -> None:
    """Raise UsageError unless the folder is new in all that is written there, or was begun for this very picture."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"--out: must be a folder, got {folder}")
    picture = original.path.resolve()
    if any((folder / kind).resolve() in picture.parents for kind in ("outputs", "manifests")):
        raise UsageError(f"--out: must be another folder than the one that {original.path} lies in, got {folder}")
    if os.path.lexists(job):
        taken = [] if job.is_file() and read_bounded(job, JOB_BYTES) == text.encode() else [job]
    else:
        places = (folder / kind / JOB_NAME for kind in ("models", "outputs", "manifests"))
        taken = [place for place in places if os.path.lexists(place)]
    if taken:
        raise UsageError(f"--out: must be a new folder, or one begun for this picture, got {folder}: it has {taken[0]}")


def _name_policy(original: Original) -> str:
    """The job's own name for it, where a job may have it: a manifest may hold any name for any policy."""
    name, policy, known = original.policy_name or "", original.request.policy, built_in_policies()
    if known.get(name, policy) == policy and POLICY_NAME.fullmatch(name):
        return name
    return next((other for other, entry in known.items() if entry == policy), "original")


def _choose_backend(original: Original) -> str:
    """A picture of the CPU is made on the CPU; one of the NPU there where it can be, and the report says where not."""
    manifest = original.manifest
    return "onnx" if manifest is not None and manifest.environment.core_mask is None else "auto"


def _run_flags(original: Original) -> dict[str, Any]:
    mask = original.manifest.environment.core_mask if original.manifest else None
    return {} if mask is None else {"core_mask": mask}
