"""What a job left on disk, read by its manifests: no model set is needed for it, and no job file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from anima_batch.batch import PNG_BYTES, check_image, read_pin
from anima_batch.errors import StorageError, UsageError
from anima_batch.files import storage_errors
from anima_batch.job import load_job
from anima_batch.store import (
    CorruptError,
    Manifest,
    NewerFormatError,
    Pixels,
    decode_pixels,
    pixel_sha256,
    read_manifest,
    read_png,
    read_regular,
)


@dataclass(frozen=True)
class JobFolder:
    """A job by its name, in its workspace."""

    workspace: Path
    name: str

    @property
    def outputs(self) -> Path:
        """The folder of its pictures."""
        return self.workspace / "outputs" / self.name

    @property
    def manifests(self) -> Path:
        """The folder of its manifests."""
        return self.workspace / "manifests" / self.name


@dataclass(frozen=True)
class Record:
    """A manifest that was read, with the workspace that its paths are relative to.

    `fault` is what its file differs in now, "" where it is the recorded one; `whole`: the picture is the recorded one.
    """

    manifest: Manifest
    path: Path
    workspace: Path
    fault: str = ""
    whole: bool = True

    @property
    def stem(self) -> str:
        """The name of its files, without suffix."""
        return self.path.stem

    @property
    def picture(self) -> Path | None:
        """Where its PNG should lie; None for a failed image."""
        return self.workspace / self.manifest.image.path if self.manifest.image else None

    @property
    def passes(self) -> int:
        """Transformer passes that were run."""
        return sum(step.passes for step in self.manifest.steps)

    @property
    def setting(self) -> str:
        """Sampler, steps and the policy's name, such as `euler 20 spectrum`; `full` goes without saying."""
        request, policy = self.manifest.request, self.manifest.sampling.policy["name"]
        return " ".join([request.sampler, str(request.steps), *([] if policy == "full" else [str(policy)])])

    def read_pixels(self) -> Pixels:
        """Its picture, uint8 (H, W, 3). Raises CorruptError or StorageError."""
        assert self.picture is not None  # of a done image
        with storage_errors(self.picture):
            data = read_regular(self.picture, PNG_BYTES)
        return decode_pixels(data, str(self.picture))


@dataclass(frozen=True)
class Records:
    """All images of a job: those with a manifest, the stems of those without, and a line for each manifest that is bad.

    `dropped` are request ids of images that the job does not ask for any more, or that were controls.
    """

    folder: JobFolder
    records: tuple[Record, ...]
    waiting: tuple[str, ...]
    dropped: frozenset[str]
    problems: tuple[str, ...]

    @property
    def usable(self) -> tuple[Record, ...]:
        """The finished images whose picture is there and is the one that was made."""
        return tuple(entry for entry in self.records if entry.manifest.status == "done" and entry.whole)


def find_job(path: Path, workspace: Path) -> JobFolder:
    """The job of a job file, or of its folder in outputs/ or manifests/. Raises JobError, UsageError."""
    inside = workspace / path
    single = path.suffix.lower() in (".png", ".json")
    if not single and (path.suffix == ".toml" or path.is_file()):
        job = inside if inside.is_file() and not path.is_file() else path
        return JobFolder(workspace, load_job(job, workspace).name)
    for folder in (path, inside):
        place = Path(os.path.abspath(folder))  # not resolved: a link to another disk has the job's name
        if folder.is_dir() and place.parent.name in ("outputs", "manifests"):
            return JobFolder(_shorten(place.parent.parent), place.name)
    found = "one image" if single else "a folder that is neither" if path.is_dir() else "nothing of that name"
    raise UsageError(f"{path}: must be a job file (TOML), or a job's folder in outputs/ or manifests/, got {found}")


def _shorten(folder: Path) -> Path:
    """Relative where it is the folder one stands in: paths are shown as the user knows them."""
    return Path() if folder == Path.cwd() else folder


def read_records(folder: JobFolder) -> Records:
    """Every manifest of the job, with its picture checked by digest. Raises UsageError where there is none."""
    records, problems = [], []
    for path in sorted(folder.manifests.glob("*.json")):
        try:
            records.append(read_record(path, folder.workspace))
        except (CorruptError, NewerFormatError, StorageError) as error:  # the others can be told of all the same
            problems.append(str(error))
    if not records and not problems:
        raise UsageError(f"{folder.manifests}: no image of this job is finished or failed yet: run it first")
    pinned = dict(read_pin(folder.outputs).images)
    order = {request_id: place for place, request_id in enumerate(pinned)}
    records.sort(key=lambda entry: (order.get(entry.manifest.request_id, len(order)), entry.stem))
    known = {entry.manifest.request_id for entry in records}
    waiting = tuple(stem for request_id, stem in pinned.items() if request_id not in known)
    dropped = frozenset(known - set(pinned)) if pinned else frozenset[str]()
    return Records(folder, tuple(records), waiting, dropped, tuple(problems))


def read_record(path: Path, workspace: Path) -> Record:
    """A manifest with its picture checked. Raises CorruptError or StorageError."""
    manifest = read_manifest(path)
    if manifest.status != "done":
        return Record(manifest, path, workspace)
    checked = check_image(workspace, manifest)
    return Record(manifest, path, workspace, checked.fault, whole=not checked.wrong)


def find_record(path: Path, workspace: Path) -> Record:
    """The record of one manifest, or of a PNG of ours by the manifest that it names or that has its name.

    Raises UsageError for a PNG without one and for one with other pixels, CorruptError or StorageError.
    """
    if path.suffix.lower() == ".json":
        return read_record(path, _workspace_of(path, workspace))
    with storage_errors(path):
        data = read_regular(path, PNG_BYTES)
    place = Path(os.path.abspath(path))
    try:
        named = read_png(data, str(path)).record.manifest
    except CorruptError:  # its metadata was stripped: outputs/<job>/<stem>.png has manifests/<job>/<stem>.json
        named = f"manifests/{place.parent.name}/{place.stem}.json"
    for root in (*map(_shorten, place.parents[2:3]), workspace):  # two workspaces may have a job of one name
        if (root / named).is_file():
            record = read_record(root / named, root)
            if not _has_pixels(data, record.manifest):
                raise UsageError(f"{path}: its pixels are not those that {record.path} records: see `audit {path}`")
            return record
    raise UsageError(f"{path}: its manifest {named} is not in {workspace}: give the workspace by --workspace")


def _has_pixels(data: bytes, manifest: Manifest) -> bool:
    try:
        return manifest.image is not None and manifest.image.pixel_sha256 == pixel_sha256(decode_pixels(data))
    except CorruptError:
        return False


def _workspace_of(manifest: Path, workspace: Path) -> Path:
    """The workspace that a manifest lies in, by its place; the one that was given elsewhere."""
    place = Path(os.path.abspath(manifest))
    return _shorten(place.parents[2]) if len(place.parents) > 2 and place.parents[1].name == "manifests" else workspace
