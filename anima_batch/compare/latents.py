"""How two images came to differ, step by step: by the digests in every manifest, and by latents that were kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anima_batch.compare.records import Record
from anima_batch.store import Array, CorruptError, read_latents


@dataclass(frozen=True)
class StepCosine:
    """The cosine of two images' latents after a step, counted from 1."""

    step: int
    cosine: float


def first_difference(record: Record, reference: Record) -> int | None:
    """The first step, from 1, after which the latents have another digest.

    None where there is none, or where the two took other steps: then each step of one has no counterpart.
    """
    if not _same_steps(record, reference):
        return None
    pairs = zip(record.manifest.steps, reference.manifest.steps, strict=False)
    return next((one.index for one, other in pairs if one.latents_xxh3 != other.latents_xxh3), None)


def measure_cosines(record: Record, reference: Record) -> tuple[StepCosine, ...]:
    """For each step of which both images kept the latents; only for the last one where they took other steps.

    Equal digests are equal latents, whether they were kept or not; a damaged file counts as not kept.
    Raises StorageError.
    """
    ours, others = record.manifest.steps, reference.manifest.steps
    pairs = (
        zip(ours, others, strict=False) if _same_steps(record, reference) else zip(ours[-1:], others[-1:], strict=True)
    )
    found = []
    for one, other in pairs:
        cosine = (
            1.0
            if one.latents_xxh3 == other.latents_xxh3
            else _cosine_of(
                _read(record, one.index, one.latents_xxh3), _read(reference, other.index, other.latents_xxh3)
            )
        )
        if cosine is not None:
            found.append(StepCosine(one.index, cosine))
    return tuple(found)


def _same_steps(record: Record, reference: Record) -> bool:
    return record.manifest.sampling.sigmas == reference.manifest.sampling.sigmas


def _read(record: Record, step: int, xxh3: str) -> Array | None:
    folder = record.workspace / "outputs" / record.manifest.job.name / ".latents" / record.manifest.request_id[:12]
    try:
        return read_latents(folder, step, xxh3)
    except CorruptError:  # no more of use than one of another digest; the pictures can be compared all the same
        return None


def _cosine_of(one: Array | None, other: Array | None) -> float | None:
    if one is None or other is None or one.shape != other.shape:
        return None
    x, y = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / length if length else None
