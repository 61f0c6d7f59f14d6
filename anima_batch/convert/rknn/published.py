"""What was published of this model on a ROCK 5C with RKNN-Toolkit2 2.3.2, to lay beside what is found here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anima_batch.convert.rknn.lanes import Finding


@dataclass(frozen=True)
class Published:
    """A measurement on a board with the released weights: `part`, `lane` and `reference` as a Finding has them."""

    what: str
    part: str
    lane: str
    reference: str
    cosine: float
    mae: float | None = None
    max_abs: float | None = None


PUBLISHED = (
    Published("one block", "block", "rknn", "torch", 0.9999990896, 1.95e-4, 0.11446),
    Published("worst block", "block", "rknn", "onnx", 0.999993668),
    Published("hidden after all blocks", "hidden", "rknn", "onnx", 0.9999989412),
    Published("prediction after all blocks", "prediction", "rknn", "onnx", 0.9999989072, 1.29712e-3, 8.30078e-3),
)
PUBLISHED_W8A8 = "denoise 18.48 % shorter on the board; the picture failed by eye; no NaN"


def find_counterpart(published: Published, findings: Sequence[Finding]) -> Finding | None:
    """What was found here of the same: the first block, the one with the lowest cosine, or what is last."""
    same = [
        finding
        for finding in findings
        if (finding.part, finding.lane, finding.reference) == (published.part, published.lane, published.reference)
    ]
    if not same:
        return None
    if published.what == "worst block":
        return min(same, key=lambda finding: finding.deviation.cosine)
    return same[0] if published.what == "one block" else same[-1]
