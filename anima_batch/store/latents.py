"""Latents that a job asked to keep: one file a step, which the manifest's digest of that step vouches for."""

from __future__ import annotations

from pathlib import Path

from anima_batch.files import make_folder, storage_errors, write_atomic, xxh3_128_bytes
from anima_batch.store.tensors import Array, pack_tensors, read_tensors

_KIND = "latents"


def latents_path(folder: Path, step: int) -> Path:
    """Where the latents after a step (from 1) lie; `folder` is the image's own."""
    return folder / f"{step:03}.latents"


def write_latents(folder: Path, step: int, latents: Array) -> None:
    """Make the latents after a step (from 1) durable. Raises StorageError."""
    make_folder(folder)
    write_atomic(latents_path(folder, step), pack_tensors(_KIND, {"latents": latents}, {"step": step}))


def read_latents(folder: Path, step: int, xxh3: str) -> Array | None:
    """The latents after a step (from 1), None where they were not kept or are not those of the digest.

    Raises CorruptError for a damaged file, StorageError for one that cannot be read.
    """
    path = latents_path(folder, step)
    if not path.is_file():
        return None
    with storage_errors(path):
        latents = read_tensors(path, _KIND).tensors.get("latents")
    return latents if latents is not None and xxh3_128_bytes(latents.tobytes()) == xxh3 else None
