"""Whom an image is compared with: pure decisions on requests and counted passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from anima_batch.compare.records import Record

CONVERGED_STEPS = 100  # plain sampling with so many is taken for the solution that more steps would not change
_NEAREST_FIRST = ("ab2", "dpmpp_2m", "euler")  # to the solution, with as many steps
_SUBJECT = (
    "prompt", "negative_prompt", "seed", "width", "height", "guidance_scale", "shift", "schedule", "noise"
)  # fmt: skip


def subject(record: Record) -> tuple[Any, ...]:
    """What two pictures must share to be of the same thing: all but sampler, steps and policy."""
    return tuple(getattr(record.manifest.request, name) for name in _SUBJECT)


def find_twin(record: Record, others: Iterable[Record]) -> Record | None:
    """The plain image that this one stands in for, among images of the same subject.

    Of an image under a policy: the one with as many steps, by the same sampler before Euler's. Of a plain one, and
    where that is missing: the plain one with the most steps (short of a converged one), Euler's first.
    """
    plain = [other for other in others if _is_plain(other) and not _is_converged(other)]
    request = record.manifest.request
    if _is_converged(record):
        return None
    if not _is_plain(record):
        equal = [other for other in plain if other.manifest.request.steps == request.steps]
        if equal:
            return max(equal, key=lambda other: (_sampler(other) == request.sampler, _sampler(other) == "euler"))
    best = max(plain, key=lambda other: (other.manifest.request.steps, _sampler(other) == "euler"), default=None)
    return None if best is None or best.path == record.path else best


def find_controls(record: Record, others: Iterable[Record]) -> Sequence[Record]:
    """Plain images of the same subject with as many passes, or one step's rest more; none for a plain image."""
    if _is_plain(record):
        return []
    streams = 1 if record.manifest.request.guidance_scale == 1.0 else 2
    wanted = -(-record.passes // streams) * streams
    return [other for other in others if _is_plain(other) and other.passes == wanted]


def find_converged(record: Record, others: Iterable[Record]) -> Record | None:
    """The plain image of the same subject with the most steps, of at least CONVERGED_STEPS and more than this one's."""
    finest = [other for other in others if _is_converged(other)]
    best = max(
        finest, key=lambda other: (other.manifest.request.steps, -_NEAREST_FIRST.index(_sampler(other))), default=None
    )
    return None if best is None or best.path == record.path or _is_converged(record) else best


def _is_plain(record: Record) -> bool:
    return record.manifest.request.policy.kind == "full"


def _is_converged(record: Record) -> bool:
    return _is_plain(record) and record.manifest.request.steps >= CONVERGED_STEPS


def _sampler(record: Record) -> str:
    return record.manifest.request.sampler
