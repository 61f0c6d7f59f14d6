"""What made a picture (model set, weights, versions, seed, policy), and whether all of it is still as recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anima_batch.batch import Batch, survey
from anima_batch.errors import AnimaBatchError, UsageError
from anima_batch.files import sha256_bytes
from anima_batch.job import request_id, request_json
from anima_batch.model_set import check_components, find_by_digest, list_model_sets
from anima_batch.store import (
    Manifest,
    ModelSetRecord,
    PngContent,
    load_checkpoint,
    pixel_sha256,
    read_manifest,
    read_png,
)


@dataclass(frozen=True)
class Audit:
    """Facts from one file's records, and every difference from them; `notes` say what could not be checked."""

    path: Path
    facts: dict[str, Any]
    differences: tuple[str, ...]
    notes: tuple[str, ...] = ()


def audit_paths(paths: Iterable[Path], workspace: Path) -> Iterator[Audit]:
    """An audit for each PNG and manifest given or found in a folder; raises UsageError for a path that is neither."""
    auditor = _Auditor(workspace)
    for path in paths:
        if path.is_dir():
            for file in sorted(_find_files(path), key=lambda file: (file.suffix.lower() != ".png", file)):
                if file.resolve() not in auditor.seen:
                    yield auditor.audit(file)
        elif path.suffix.lower() in (".png", ".json") and path.is_file():
            yield auditor.audit(path)
        else:
            raise UsageError(f"{path}: must be a PNG, a manifest or a folder with some, got none of these")


def _find_files(folder: Path) -> list[Path]:
    """Pictures, and JSON files named as manifests are; a workspace has many others."""
    manifests = (path for path in folder.rglob("*.json") if re.search(r"-[0-9a-f]{12}$", path.stem))
    return [path for path in (*folder.rglob("*.png"), *manifests) if path.is_file()]


@dataclass
class _Auditor:
    """Remembers what was read, so that a folder of a thousand pictures hashes its model set once."""

    workspace: Path
    seen: set[Path] = field(default_factory=set)
    checked_sets: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)

    def audit(self, path: Path) -> Audit:
        """The audit of a PNG or a manifest."""
        self.seen.add(path.resolve())
        return self._audit_png(path) if path.suffix.lower() == ".png" else self._audit_manifest(path)

    def _audit_png(self, path: Path) -> Audit:
        data = path.read_bytes()
        differences: list[str] = []
        content: PngContent | None = None
        try:
            content = read_png(data, str(path))
        except AnimaBatchError as error:
            differences.append(str(error))
        try:
            manifest_path, manifest = self._find_manifest(path, content)
        except AnimaBatchError as error:
            return Audit(path, _png_facts(content) if content else {}, (*differences, str(error)))
        if manifest is None:
            note = "no manifest of this picture is in the workspace: give the one it was made in by --workspace"
            facts = _png_facts(content) if content else {}
            return Audit(path, facts, tuple(differences), (note,))
        self.seen.add(manifest_path.resolve())
        differences += _compare_png(path, data, content, manifest)
        return self._conclude(path, manifest, manifest_path, differences)

    def _audit_manifest(self, path: Path) -> Audit:
        try:
            manifest = read_manifest(path)
        except AnimaBatchError as error:
            return Audit(path, {}, (str(error),))
        differences = []
        if manifest.image is not None:
            picture = self.workspace / manifest.image.path
            self.seen.add(picture.resolve())
            try:
                data = picture.read_bytes()
            except OSError as error:
                differences.append(f"{picture}: {error.strerror}")
            else:
                differences += _compare_png(picture, data, None, manifest)
        return self._conclude(path, manifest, path, differences)

    def _find_manifest(self, path: Path, content: PngContent | None) -> tuple[Path, Manifest | None]:
        """By the path in the PNG, by its request id, or by the file's own name; it may have been renamed or moved."""
        short = content.record.request_id[:12] if content else path.stem[-12:]
        candidates = [self.workspace / content.record.manifest] if content else []
        candidates += sorted((self.workspace / "manifests").glob(f"*/*-{short}.json")) if short.isalnum() else []
        candidates.append(path.with_suffix(".json"))
        for candidate in candidates:
            if candidate.is_file():
                return candidate, read_manifest(candidate)
        return path, None

    def _conclude(self, path: Path, manifest: Manifest, manifest_path: Path, differences: list[str]) -> Audit:
        if request_id(manifest.request, manifest.model_set.digest) != manifest.request_id:
            differences.append(f"{manifest_path}: request_id is not of this request and model set")
        wrong, notes = self._check_model_set(manifest.model_set)
        facts = {"manifest": str(manifest_path), **_manifest_facts(manifest)}
        return Audit(path, facts, (*differences, *wrong), tuple(notes))

    def _check_model_set(self, record: ModelSetRecord) -> tuple[list[str], list[str]]:
        if record.digest not in self.checked_sets:
            self.checked_sets[record.digest] = self._compare_model_set(record)
        return self.checked_sets[record.digest]

    def _compare_model_set(self, record: ModelSetRecord) -> tuple[list[str], list[str]]:
        """Differences between the record's files and those of the set with that digest, or else that name."""
        found = find_by_digest(record.digest, self.workspace)
        if found is not None:
            return check_components(found.folder, record.components), []
        found = next((entry for entry in list_model_sets(self.workspace) if entry.name == record.name), None)
        if found is None:
            return [], [f"model set {record.name} ({record.digest[:12]}) is not here: its files were not checked"]
        other = f"{found.folder}: model set digest must be {record.digest}, got {found.digest}"
        return [other, *check_components(found.folder, record.components)], []


def _compare_png(path: Path, data: bytes, content: PngContent | None, manifest: Manifest) -> list[str]:
    """Differences between a picture and its manifest."""
    if manifest.image is None:
        return [f"{path}: its manifest says that the image failed"]
    differences = []
    if (digest := sha256_bytes(data)) != manifest.image.sha256:
        same = content is not None and pixel_sha256(content.pixels) == manifest.image.pixel_sha256
        what = "the pixels are the recorded ones, so only metadata changed" if same else "the picture changed"
        differences.append(f"{path}: sha256 must be {manifest.image.sha256}, got {digest}: {what}")
    if content is not None and content.record.request != manifest.request:
        differences.append(f"{path}: its anima_batch chunk holds another request than its manifest")
    return differences


def _png_facts(content: PngContent) -> dict[str, Any]:
    record = content.record
    return {
        "request_id": record.request_id,
        "request": request_json(record.request),
        "model_set": record.model_set.model_dump(),
    }


def _manifest_facts(manifest: Manifest) -> dict[str, Any]:
    model_set = manifest.model_set
    return {
        "request_id": manifest.request_id,
        "status": manifest.status,
        "error": manifest.error.model_dump() if manifest.error else None,
        "request": request_json(manifest.request),
        "policy_name": manifest.sampling.policy["name"],
        "computed_steps": list(manifest.sampling.computed_steps),
        "model_set": {"name": model_set.name, "digest": model_set.digest, "license": model_set.license},
        "weights": [source.model_dump() for source in model_set.source],
        "environment": manifest.environment.model_dump(),
        "runs": [run.model_dump() for run in manifest.runs],
        "timings": manifest.timings.model_dump(),
        "warnings": list(manifest.warnings),
    }


def verify_job(batch: Batch) -> Iterator[Audit]:
    """Every finished or failed image of the job and every checkpoint, against their digests."""
    found = survey(batch)
    for image, request in zip(batch.images, batch.request_ids, strict=True):
        entry = found.get(request)
        if entry is None:
            continue
        stem = image.stem(request)
        if entry.damaged:
            yield Audit(batch.manifests / f"{stem}.json", {"status": "damaged"}, (entry.progress.reason,))
        elif entry.path is not None:
            yield Audit(entry.path, {"status": entry.progress.status}, ())
        folder = batch.checkpoint(request)
        if folder.is_dir():
            problems = load_checkpoint(folder).problems
            yield Audit(folder, {"status": "begun", "step": entry.progress.step}, problems)
