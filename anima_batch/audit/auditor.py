"""The audit of PNGs and manifests, and of folders with some."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from anima_batch.audit.differences import compare_model_set, compare_picture, open_picture
from anima_batch.audit.search import FoundManifest, ManifestSearch, list_files
from anima_batch.errors import AnimaBatchError, UsageError
from anima_batch.job import request_id, request_json
from anima_batch.model_set import ModelSet, find_by_digest, scan_model_sets, verify_model_set
from anima_batch.store import ComponentRecord, Manifest, ModelSetRecord, PngRecord, read_manifest

Parts: TypeAlias = tuple[tuple[str, str], ...]  # (role, sha256)

_MANIFEST_NAME = re.compile(r"-[0-9a-f]{12}\.json$")


@dataclass(frozen=True)
class Audit:
    """Facts from one file's records, and every difference from them; `notes` say what could not be checked.

    `parts` are the files of weights behind the picture and the files of its model set.
    """

    path: Path
    facts: dict[str, Any]
    differences: tuple[str, ...]
    notes: tuple[str, ...] = ()
    parts: Parts = ()


def audit_paths(paths: Iterable[Path], workspace: Path, *, sha256: bool = False) -> Iterator[Audit]:
    """An audit for each PNG and manifest given or found in a folder, whatever is in it; one is in memory at a time.

    The files of model sets are read by XXH3, with `sha256` by that too. Raises UsageError, before the first audit, for
    a path that is neither and for a folder without any.
    """
    if not workspace.is_dir():
        raise UsageError(f"{workspace}: the workspace must be a folder: give it by --workspace")
    found = [(path, _find_files(path)) for path in paths]
    folders = [path for path, _ in found if path.is_dir()]
    auditor = _Auditor(workspace, ManifestSearch(workspace, folders), sha256=sha256)
    for path, files in found:
        for file in map(Path, files):
            if file == path or not auditor.has_seen(file):
                yield auditor.audit(file)


def _find_files(path: Path) -> list[str]:
    """The path itself, or a folder's pictures and then the JSON files named as manifests: a workspace has many others.

    What only looks like one of these (a pipe, a link that leads nowhere) has its audit too.
    """
    if path.is_dir():
        manifests = (name for name in list_files(path, ".json") if _MANIFEST_NAME.search(name))
        files = [*list_files(path, ".png"), *manifests]
    else:
        files = [str(path)] if path.suffix.lower() in (".png", ".json") and os.path.lexists(path) else []
    if not files:
        raise UsageError(f"{path}: must be a PNG, a manifest or a folder with some, got none of these")
    return files


@dataclass
class _Auditor:
    """Remembers what was read, so that a folder of a thousand pictures hashes its model set once."""

    workspace: Path
    search: ManifestSearch
    sha256: bool
    _seen: set[str] = field(default_factory=set)
    _sets: dict[str, tuple[ModelSet, ...]] = field(default_factory=dict)
    _file_problems: dict[Path, list[str]] = field(default_factory=dict)

    def has_seen(self, path: Path) -> bool:
        """Whether the file was audited, by itself or with its manifest or picture."""
        return os.path.realpath(path) in self._seen

    def audit(self, path: Path) -> Audit:
        """The audit of a PNG or a manifest."""
        self._mark_seen(path)
        try:
            return self._audit_png(path) if path.suffix.lower() == ".png" else self._audit_manifest(path)
        except AnimaBatchError as error:
            return Audit(path, {}, (str(error),))

    def _mark_seen(self, path: Path) -> None:
        self._seen.add(os.path.realpath(path))  # unlike Path.resolve it takes links that lead in a circle

    def _audit_png(self, path: Path) -> Audit:
        picture = open_picture(path)
        facts, parts = self._describe_record(picture.record) if picture.record else ({}, ())
        try:
            found = self.search.find(picture)
        except AnimaBatchError as error:
            return Audit(path, facts, (*picture.problems, str(error)), parts=parts)
        if found is None:
            note = "no manifest of this picture is in the workspace: give the one it was made in by --workspace"
            return Audit(path, facts, picture.problems, (note,), parts)
        self._mark_seen(found.path)
        return self._conclude(path, found, compare_picture(picture, found.manifest))

    def _describe_record(self, record: PngRecord) -> tuple[dict[str, Any], Parts]:
        """What a picture says of itself; of its weights only its model set knows, where that is here."""
        parts: Parts = ()
        for model_set in self._find_sets(record.model_set.digest):
            parts = _parts(model_set.description.sources, model_set.description.components)
        return _png_facts(record), parts

    def _audit_manifest(self, path: Path) -> Audit:
        manifest = read_manifest(path)
        differences = []
        if manifest.image is not None:
            picture = self.workspace / manifest.image.path
            self._mark_seen(picture)
            try:
                differences = compare_picture(open_picture(picture), manifest)
            except AnimaBatchError as error:
                differences = [str(error)]
        return self._conclude(path, FoundManifest(path, manifest, "path"), differences)

    def _conclude(self, path: Path, found: FoundManifest, differences: list[str]) -> Audit:
        manifest = found.manifest
        if request_id(manifest.request, manifest.model_set.digest) != manifest.request_id:
            differences.append(f"{found.path}: request_id is not of this request and model set")
        wrong, notes = self._check_model_set(manifest.model_set, found.path)
        facts = {"manifest": str(found.path), "found_by": found.found_by, **_manifest_facts(manifest)}
        parts = _parts(manifest.model_set.source, manifest.model_set.components)
        return Audit(path, facts, (*differences, *wrong), tuple(notes), parts)

    def _find_sets(self, digest: str) -> tuple[ModelSet, ...]:
        if digest not in self._sets:
            self._sets[digest] = find_by_digest(digest, self.workspace)
        return self._sets[digest]

    def _check_model_set(self, record: ModelSetRecord, manifest: Path) -> tuple[list[str], list[str]]:
        """Differences and notes; of several sets with the digest (copies, say) one that is whole is enough."""
        first: list[str] | None = None
        for model_set in self._find_sets(record.digest):
            differences = [*self._check_files(model_set), *compare_model_set(record, model_set, manifest)]
            if not differences:
                return [], []
            first = differences if first is None else first
        return (first, []) if first is not None else self._check_namesake(record, manifest)

    def _check_namesake(self, record: ModelSetRecord, manifest: Path) -> tuple[list[str], list[str]]:
        """What a set of that name has otherwise, where none has the digest."""
        scan = scan_model_sets(self.workspace)
        found = next((entry for entry in scan.sets if entry.name == record.name), None)
        if found is None:
            missing = f"model set {record.name} ({record.digest[:12]}) is not here: its files were not checked"
            return [], [missing, *scan.problems]
        other = f"{found.folder}: model set digest must be {record.digest}, got {found.digest}"
        return [other, *self._check_files(found), *compare_model_set(record, found, manifest)], []

    def _check_files(self, model_set: ModelSet) -> list[str]:
        if model_set.folder not in self._file_problems:
            self._file_problems[model_set.folder] = verify_model_set(model_set, sha256=self.sha256)
        return self._file_problems[model_set.folder]


def _parts(*kinds: Iterable[Any]) -> Parts:
    return tuple((part.role, part.sha256) for parts in kinds for part in parts)


def _sum_up_tools(components: Iterable[ComponentRecord]) -> dict[str, dict[str, Any]]:
    """What wrote the set's files: for each kind of file their number, and the values of each entry of `built_with`.

    What no two files share, such as the digest of a source, says nothing of a kind: it is left to the manifest.
    """
    kinds: dict[str, list[Mapping[str, str]]] = {}
    for part in components:
        kinds.setdefault(PurePosixPath(part.path).suffix.lstrip("."), []).append(part.built_with)
    return {kind: {"files": len(records), **_shared_values(records)} for kind, records in kinds.items()}


def _shared_values(records: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The different values of each key, where there are fewer of them than records."""
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for key, value in record.items():
            values.setdefault(key, {})[value] = None
    return {key: list(found) for key, found in values.items() if len(found) < len(records) or len(records) == 1}


def _png_facts(record: PngRecord) -> dict[str, Any]:
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
        "built_with": _sum_up_tools(model_set.components),
        "environment": manifest.environment.model_dump(),
        "runs": [run.model_dump() for run in manifest.runs],
        "timings": manifest.timings.model_dump(),
        "warnings": list(manifest.warnings),
    }
