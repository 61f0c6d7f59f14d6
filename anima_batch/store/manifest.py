"""The manifest: what made an image, with a digest of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from pydantic import ValidationError

from anima_batch.files import make_folder, sha256_bytes, storage_errors, write_atomic
from anima_batch.job import ImageRequest, request_json
from anima_batch.store.integrity import CorruptError, describe_fault, read_regular, refuse_newer
from anima_batch.store.records import UNSIGNED, LatentsRecord, Manifest
from anima_batch.store.tensors import Array

SCHEMA_VERSION = 1
MANIFEST_BYTES = 16 << 20  # many times what 200 steps, the longest prompts and the largest model set take


def record_policy(request: ImageRequest, name: str) -> dict[str, Any]:
    """The manifest's `sampling.policy`: the policy's name in the job file, then all its parameters."""
    return {"name": name, **request_json(request)["policy"]}


def describe_latents(latents: Array) -> LatentsRecord:
    """The record of latents of any shape and floating dtype; statistics are computed in float64."""
    finite = latents[np.isfinite(latents)].astype(np.float64)
    some = finite.size > 0
    return LatentsRecord(
        sha256=sha256_bytes(latents.tobytes()),
        dtype=latents.dtype.name,
        shape=latents.shape,
        min=float(finite.min()) if some else None,
        max=float(finite.max()) if some else None,
        mean=float(finite.mean()) if some else None,
        std=float(finite.std()) if some else None,
        nan=int(np.isnan(latents).sum()),
        inf=int(np.isinf(latents).sum()),
    )


def to_bytes(manifest: Manifest) -> bytes:
    """The file: indented JSON in the model's order, floats as `repr`, its own digest last.

    `self_sha256` is the SHA-256 of these bytes with 64 times `0` in its place.
    """
    content = manifest.model_dump(mode="json")
    content["self_sha256"] = UNSIGNED
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    head, _, tail = text.rpartition(UNSIGNED)
    return f"{head}{sha256_bytes(text.encode())}{tail}".encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The manifest in a file's bytes; `where` names the file in errors.

    Raises CorruptError for bad JSON, a wrong self_sha256 or a field that does not fit, NewerFormatError for a later
    schema.
    """
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{where}: not valid JSON: {error}: restore it or run the job again") from error
    if not isinstance(content, dict):
        _refuse(where, f"must be a JSON object, got {type(content).__name__}")
    _check_self_digest(data, content.get("self_sha256"), where)
    refuse_newer(content.get("schema_version"), SCHEMA_VERSION, where)
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise CorruptError(f"{where}: {describe_fault(error)}: written by another program?") from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Make the manifest durable; the image counts as done from here on. Raises StorageError."""
    make_folder(path.parent)
    write_atomic(path, to_bytes(manifest))


def read_manifest(path: Path) -> Manifest:
    """The manifest of a file; raises StorageError when it cannot be read, else as parse_manifest."""
    with storage_errors(path):
        data = read_regular(path, MANIFEST_BYTES)
    return parse_manifest(data, str(path))


def _check_self_digest(data: bytes, recorded: object, where: str) -> None:
    if not isinstance(recorded, str) or not re.fullmatch("[0-9a-f]{64}", recorded):
        _refuse(where, f"self_sha256: must be 64 lower-case hex digits, got {recorded!r:.80}")
    if (places := data.count(recorded.encode())) != 1:
        _refuse(where, f"self_sha256: its digits must stand once in the file, got {places} times")
    found = sha256_bytes(data.replace(recorded.encode(), UNSIGNED.encode()))
    if found != recorded:
        _refuse(where, f"self_sha256: must be {found} for this content, got {recorded}")


def _refuse(where: str, fault: str) -> NoReturn:
    raise CorruptError(f"{where}: {fault}: the file was changed: restore it or run the job again")
