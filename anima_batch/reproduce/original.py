"""The picture that is to be made again: what its manifest, or the picture alone, says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anima_batch.audit import ManifestSearch, Picture, open_picture
from anima_batch.errors import AnimaBatchError, DifferenceFoundError, UsageError
from anima_batch.job import ImageRequest, request_id
from anima_batch.store import Manifest, Pixels, read_manifest


@dataclass(frozen=True)
class Original:
    """The request, the model set, and what there is to compare with: the manifest, the pixels or both.

    `policy_name` is the job's own name for the policy, None where only the picture is left.
    """

    path: Path
    request: ImageRequest
    request_id: str
    model_set_name: str
    model_set_digest: str
    manifest: Manifest | None
    pixels: Pixels | None

    @property
    def policy_name(self) -> str | None:
        """The job's name for the policy; a picture alone does not know it."""
        return None if self.manifest is None else str(self.manifest.sampling.policy["name"])


def read_original(path: Path, workspace: Path) -> Original:
    """What a manifest or a PNG says; a PNG's manifest is looked for in the workspace, a manifest's PNG too.

    Raises UsageError for another file and a failed image, DifferenceFoundError where the records do not hold together,
    StorageError.
    """
    if path.suffix.lower() not in (".png", ".json") or not path.is_file():
        raise UsageError(f"{path}: must be a manifest or a PNG of anima-batch, got none of these")
    if path.suffix.lower() == ".json":
        manifest = read_manifest(path)
        return _from_manifest(path, manifest, _find_pixels(manifest, [workspace, *path.resolve().parents[2:3]]))
    picture = open_picture(path)
    found = ManifestSearch(workspace, [path.parent]).find(picture)
    if found is not None and _is_of(picture, found.manifest):
        return _from_manifest(path, found.manifest, picture.pixels)
    if picture.record is None:
        raise DifferenceFoundError(*picture.problems, f"{path}: no manifest in {workspace} is of these pixels")
    record = picture.record
    original = Original(
        path=path,
        request=record.request,
        request_id=record.request_id,
        model_set_name=record.model_set.name,
        model_set_digest=record.model_set.digest,
        manifest=None,
        pixels=picture.pixels,
    )
    return _check_identity(original)


def _is_of(picture: Picture, manifest: Manifest) -> bool:
    """Whether the manifest tells of this picture, and not only of what its name once led to."""
    return manifest.image is not None and manifest.image.pixel_sha256 == picture.pixel_sha256


def _from_manifest(path: Path, manifest: Manifest, pixels: Pixels | None) -> Original:
    if manifest.error is not None:
        raise UsageError(
            f"{path}: must be of a finished image, but it failed ({manifest.error.message}): "
            "`run --retry-failed` of its job tries it again"
        )
    original = Original(
        path=path,
        request=manifest.request,
        request_id=manifest.request_id,
        model_set_name=manifest.model_set.name,
        model_set_digest=manifest.model_set.digest,
        manifest=manifest,
        pixels=pixels,
    )
    return _check_identity(original)


def _check_identity(original: Original) -> Original:
    if request_id(original.request, original.model_set_digest) != original.request_id:
        raise DifferenceFoundError(f"{original.path}: request_id is not of this request and model set: see `audit`")
    return original


def _find_pixels(manifest: Manifest, workspaces: Sequence[Path]) -> Pixels | None:
    """The recorded picture where it still lies, if it still is the recorded one: only then is it worth a PSNR.

    `workspaces` are where to look: the one at hand, and the one that the manifest lies in.
    """
    if manifest.image is None:
        return None
    for workspace in workspaces:
        try:
            picture = open_picture(workspace / manifest.image.path)
        except AnimaBatchError:
            continue
        if _is_of(picture, manifest):
            return picture.pixels
    return None
