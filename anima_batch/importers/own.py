"""Our own pictures and manifests: the request as it was, so that the job gives the same request_id."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anima_batch.errors import UsageError
from anima_batch.files import storage_errors
from anima_batch.importers.wanted import Wanted
from anima_batch.job import POLICY_NAME, ImageRequest, Policy, built_in_policies, request_json
from anima_batch.model_set import built_in_folder, find_by_digest
from anima_batch.store import read_manifest, read_png, read_regular

_PICTURE_BYTES = 1 << 30


@dataclass(frozen=True)
class OwnPicture:
    """What it asks for, and the model set that it was made with."""

    wanted: Wanted
    set_name: str
    set_digest: str


def read_own(path: Path, policies: dict[str, Policy]) -> OwnPicture:
    """The request in a PNG or a manifest; its policy is added to `policies` under a name that says which.

    Raises UsageError for another file, CorruptError for a picture without our chunk, StorageError.
    """
    if path.suffix.lower() == ".json":
        manifest = read_manifest(path)
        name = str(manifest.sampling.policy["name"])
        wanted = _want(path, manifest.request, policies, name)
        return OwnPicture(wanted, manifest.model_set.name, manifest.model_set.digest)
    if path.suffix.lower() != ".png":
        raise UsageError(f"{path}: must be a PNG or a manifest of anima-batch, got neither")
    with storage_errors(path):
        data = read_regular(path, _PICTURE_BYTES)
    record = read_png(data, str(path)).record
    return OwnPicture(_want(path, record.request, policies, ""), record.model_set.name, record.model_set.digest)


def find_set_name(picture: OwnPicture, workspace: Path) -> str | None:
    """What a job calls the picture's model set: the name of the folder with its digest; None where it is not here."""
    for model_set in find_by_digest(picture.set_digest, workspace):
        if model_set.folder.parent in (workspace / "models", built_in_folder()):
            return model_set.folder.name
    return None


def _want(path: Path, request: ImageRequest, policies: dict[str, Policy], name: str) -> Wanted:
    fields = request_json(request) | {"policy": _name_policy(request.policy, policies, name)}
    return Wanted(path.name, fields)


def _name_policy(policy: Policy, policies: dict[str, Policy], name: str) -> str:
    """The name of the same policy if it has one already, else the recorded one, else one that counts."""
    known = {**built_in_policies(), **policies}
    if (same := next((other for other, entry in known.items() if entry == policy), None)) is not None:
        return same
    number = 1
    while name in known or not POLICY_NAME.fullmatch(name):  # a manifest may hold any name, a job only some
        name, number = f"{policy.kind}-{number}", number + 1
    policies[name] = policy
    return name
