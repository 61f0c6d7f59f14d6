"""What a picture and a model set are, beside what a manifest says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from anima_batch.batch import PNG_BYTES
from anima_batch.errors import AnimaBatchError
from anima_batch.files import sha256_bytes, storage_errors
from anima_batch.model_set import FILE_NAME, Component, ModelSet, Source
from anima_batch.store import (
    ComponentRecord,
    CorruptError,
    Manifest,
    ModelSetRecord,
    Pixels,
    PngRecord,
    SourceRecord,
    decode_pixels,
    pixel_sha256,
    read_png,
    read_regular,
)


@dataclass(frozen=True)
class Picture:
    """A PNG as far as it can be read; `problems` says what cannot."""

    path: Path
    data: bytes
    pixels: Pixels | None
    record: PngRecord | None
    problems: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Of the file."""
        return sha256_bytes(self.data)

    @cached_property
    def pixel_sha256(self) -> str | None:
        """Of the pixels; None where they cannot be read."""
        return None if self.pixels is None else pixel_sha256(self.pixels)


def open_picture(path: Path) -> Picture:
    """The picture; raises StorageError or CorruptError for a file that cannot be read at all."""
    with storage_errors(path):
        data = read_regular(path, PNG_BYTES)
    try:
        content = read_png(data, str(path))
    except AnimaBatchError as error:
        problem = str(error)
    else:
        return Picture(path, data, content.pixels, content.record)
    try:
        return Picture(path, data, decode_pixels(data, str(path)), None, (problem,))
    except CorruptError:  # which the problem says already
        return Picture(path, data, None, None, (problem,))


def compare_picture(picture: Picture, manifest: Manifest) -> list[str]:
    """Differences between a picture and its manifest."""
    path, image, record = picture.path, manifest.image, picture.record
    if image is None:
        return [*picture.problems, f"{path}: its manifest says that the image failed"]
    differences = list(picture.problems)
    found: dict[str, object] = {"sha256": picture.sha256, "bytes": len(picture.data)}
    if picture.pixels is not None:
        height, width, _ = picture.pixels.shape
        found |= {"pixel_sha256": picture.pixel_sha256, "width": width, "height": height}
    for name, got in found.items():
        if got != (wanted := getattr(image, name)):
            differences.append(f"{path}: {name} must be {wanted}, got {got}")
    if found["sha256"] != image.sha256:
        same = found.get("pixel_sha256") == image.pixel_sha256
        what = "the pixels are the recorded ones, so only metadata changed" if same else "the picture changed"
        differences[len(picture.problems)] += f": {what}"
    if record is not None:
        held = (record.request, record.request_id, record.model_set.digest)
        recorded = (manifest.request, manifest.request_id, manifest.model_set.digest)
        for name, mine, its in zip(("request", "request_id", "model set"), held, recorded, strict=True):
            if mine != its:
                differences.append(f"{path}: its anima_batch chunk holds another {name} than its manifest")
    return differences


def compare_model_set(record: ModelSetRecord, model_set: ModelSet, manifest: Path) -> list[str]:
    """Differences between what a manifest records of the set's files and weights and what the set says of them."""
    known = model_set.description
    where, described_in = f"{manifest}: model_set", model_set.folder / FILE_NAME
    return [
        *_compare_parts(f"{where}.components", record.components, known.components, described_in),
        *_compare_parts(f"{where}.source", record.source, known.sources, described_in),
    ]


_Part: TypeAlias = ComponentRecord | Component | SourceRecord | Source


def _compare_parts(where: str, recorded: Sequence[_Part], described: Sequence[_Part], described_in: Path) -> list[str]:
    """A line for each part that only one side has, and for each on whose digests or size they do not agree."""
    ours, theirs = ({_part_key(part): _part_content(part) for part in parts} for parts in (recorded, described))
    differences = [f"{where}: a part is there twice"] if len(ours) != len(recorded) else []
    for key in {**theirs, **ours}:
        if key not in ours or key not in theirs:
            differences.append(
                f"{where}: {key} {'is missing' if key in theirs else 'is there'}, unlike in {described_in}"
            )
        for name, value in ours.get(key, {}).items():
            if key in theirs and (other := theirs[key][name]) != value:
                differences.append(f"{where}: {key}: {name} is {value}, in {described_in} {other}")
    return differences


def _part_key(part: _Part) -> str:
    """The role, and of a component its kind: a role may be there in several."""
    return part.role if isinstance(part, SourceRecord | Source) else f"{part.role} {PurePosixPath(part.path).suffix}"


def _part_content(part: _Part) -> dict[str, Any]:
    return part.model_dump(include={"sha256", "xxh3_128", "bytes"})
