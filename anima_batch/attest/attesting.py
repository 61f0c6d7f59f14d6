"""Attestations beside the manifests of a run, as its images are done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anima_batch.attest.signing import sign_statement
from anima_batch.attest.statement import make_statement
from anima_batch.files import storage_errors, write_atomic
from anima_batch.runner import BatchEnded, BatchStarted, Event, ImageDone, Notice
from anima_batch.store import parse_manifest, read_regular
from anima_batch.store.manifest import MANIFEST_BYTES

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

SUFFIX = ".intoto.jsonl"


def attest_run(events: Iterable[Event], workspace: Path, signer: Signer) -> Iterator[Event]:
    """The events of a run; each finished image has its attestation before its event, those of earlier runs at the end.

    Raises StorageError where one cannot be written, the run ending with everything durable kept.
    """
    earlier: set[str] = set()
    for event in events:
        if isinstance(event, BatchStarted):
            earlier = {planned.request_id[:12] for planned in event.plan.images if planned.status == "done"}
        elif isinstance(event, ImageDone):
            attest_image(event.manifest, workspace, signer)
        elif isinstance(event, BatchEnded):
            manifests = [path for path in sorted(event.manifests.glob("*.json")) if path.stem[-12:] in earlier]
            if written := sum(attest_image(path, workspace, signer) for path in manifests):
                yield Notice(f"{written} images of earlier runs were attested now")
        yield event


def attest_image(path: Path, workspace: Path, signer: Signer) -> bool:
    """Write the attestation beside the manifest of a finished image; False if that very one is there already.

    False for a failed image too: its manifest may lie under an earlier name beside the one of the finished image.
    """
    with storage_errors(path):
        data = read_regular(path, MANIFEST_BYTES)
    manifest = parse_manifest(data, str(path))
    if manifest.image is None:
        return False
    target = path.with_name(path.stem + SUFFIX)
    envelope = sign_statement(make_statement(manifest, data, path.relative_to(workspace).as_posix()), signer)
    with storage_errors(target):
        if target.is_file() and target.read_bytes() == envelope:
            return False
    write_atomic(target, envelope)
    return True
