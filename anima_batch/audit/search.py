"""Which manifest a picture belongs to, whatever became of the names of both."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from anima_batch.audit.differences import Picture
from anima_batch.errors import AnimaBatchError
from anima_batch.files import read_bounded, storage_errors
from anima_batch.store import Manifest, read_manifest
from anima_batch.store.manifest import MANIFEST_BYTES

FoundBy = Literal["path", "request_id", "name", "sha256", "pixel_sha256"]


@dataclass(frozen=True)
class FoundManifest:
    """A manifest, where it lies, and what led to it."""

    path: Path
    manifest: Manifest
    found_by: FoundBy


def list_files(folder: Path, suffix: str) -> Iterator[str]:
    """Paths of what is below the folder and has the suffix, whatever its case, folder by folder in their order.

    Raises StorageError for a folder that cannot be listed: an audit must not pass over what is in it.
    """
    for parent, folders, names in os.walk(folder, onerror=_refuse_unlisted):
        folders.sort()
        yield from (os.path.join(parent, name) for name in sorted(names) if name.lower().endswith(suffix))


def _refuse_unlisted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a workspace without manifests/, or one taken away meanwhile
        with storage_errors(Path(error.filename)):
            raise error


class ManifestSearch:
    """The manifests of a workspace, and those in other folders: listed once, and read only where their names fail."""

    def __init__(self, workspace: Path, folders: Iterable[Path] = ()) -> None:
        self._workspace = workspace
        self._folders = (workspace / "manifests", *folders)

    def find(self, picture: Picture) -> FoundManifest | None:
        """The manifest of the picture's bytes or pixels, else that of its request, else what its names lead to.

        Raises StorageError, CorruptError or NewerFormatError for a manifest that a name leads to and that is not whole.
        """
        others = []
        for path, found_by in self._named(picture):
            found = FoundManifest(path, read_manifest(path), found_by)
            if _is_of_picture(found.manifest, picture):
                return found
            others.append(found)
        asked_for = (other for other in others if _is_of_request(other.manifest, picture))
        return self._by_content(picture) or next(asked_for, others[0] if others else None)

    def _named(self, picture: Picture) -> Iterator[tuple[Path, FoundBy]]:
        """Files that the picture's own chunk or its name leads to, the nearest first."""
        record, path = picture.record, picture.path
        if record is not None and os.path.isfile(named := self._workspace / record.manifest):
            yield named, "path"
        short = record.request_id[:12] if record else path.stem[-12:]
        yield from ((Path(known), "request_id" if record else "name") for known in self._by_short_id.get(short, ()))
        if os.path.isfile(beside := path.with_suffix(".json")):
            yield beside, "name"

    def _by_content(self, picture: Picture) -> FoundManifest | None:
        """By the digest of the file, which the picture has lost its names with, or of its pixels alone."""
        digests: dict[FoundBy, str | None] = {"sha256": picture.sha256, "pixel_sha256": picture.pixel_sha256}
        for found_by, digest in digests.items():
            if digest is not None and (path := self._by_digest.get(bytes.fromhex(digest))) is not None:
                return FoundManifest(Path(path), read_manifest(Path(path)), found_by)
        return None

    @cached_property
    def _paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for folder in self._folders for path in list_files(folder, ".json")))

    @cached_property
    def _by_short_id(self) -> dict[str, list[str]]:
        """Manifests by the id in their names."""
        known: dict[str, list[str]] = {}
        for path in self._paths:
            known.setdefault(path[-17:-5], []).append(path)
        return known

    @cached_property
    def _by_digest(self) -> dict[bytes, str]:
        """The first manifest of each image file and of its pixels; reading all of them may take seconds."""
        known: dict[bytes, str] = {}
        for path in self._paths:
            for digest in _image_digests(Path(path)):
                known.setdefault(digest, path)
        return known


def _is_of_picture(manifest: Manifest, picture: Picture) -> bool:
    image = manifest.image
    return image is not None and (image.sha256 == picture.sha256 or image.pixel_sha256 == picture.pixel_sha256)


def _is_of_request(manifest: Manifest, picture: Picture) -> bool:
    return picture.record is not None and manifest.request_id == picture.record.request_id


def _image_digests(path: Path) -> Iterator[bytes]:
    """Both digests of the image in a manifest; none for any other JSON, which is no business of this search."""
    try:
        image = json.loads(read_bounded(path, MANIFEST_BYTES))["image"]
        digests = [bytes.fromhex(image[key]) for key in ("sha256", "pixel_sha256")]
    except (AnimaBatchError, OSError, ValueError, LookupError, TypeError, RecursionError):
        return
    yield from digests
