"""Whether all that a job left on disk is still as recorded."""

from __future__ import annotations

from collections.abc import Iterator

from anima_batch.audit.auditor import Audit
from anima_batch.batch import Batch, survey


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
            progress = entry.progress  # the reason of a done image is what changed though its picture is whole
            changed = (progress.reason,) if progress.status == "done" and progress.reason else ()
            yield Audit(entry.path, {"status": progress.status}, changed)
        if entry.checkpoint_problems is not None:
            facts = {"status": "begun", "step": entry.progress.step}
            yield Audit(batch.checkpoint(request), facts, entry.checkpoint_problems)
