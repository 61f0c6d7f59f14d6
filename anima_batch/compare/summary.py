"""What comparisons come to: by setting, and in sum as the published table has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from anima_batch.compare.comparison import Against, Comparison, making_seconds


@dataclass(frozen=True)
class SettingSummary:
    """Means over a setting's images; those to the twin and the control are None where no image has one.

    `psnr_db` is infinite where every picture is its twin's.
    """

    setting: str
    images: int
    passes: float
    seconds: float
    reference: str | None
    passes_saved: float | None
    seconds_saved: float | None
    psnr_db: float | None
    worst_psnr_db: float | None
    ssim: float | None
    contrast: float | None
    cosine: float | None
    converged_psnr_db: float | None
    gain_db: float | None
    flagged: int


def summarise_settings(comparisons: Iterable[Comparison]) -> list[SettingSummary]:
    """One a setting, in the order in which they come."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.record.setting, []).append(comparison)
    return [_summarise(setting, group) for setting, group in groups.items()]


def _summarise(setting: str, group: Sequence[Comparison]) -> SettingSummary:
    twins = [entry.twin for entry in group if entry.twin]
    near = [twin.likeness for twin in twins]
    settings = dict.fromkeys(twin.reference.setting for twin in twins)
    return SettingSummary(
        setting=setting,
        images=len(group),
        passes=fmean(entry.record.passes for entry in group),
        seconds=fmean(making_seconds(entry.record) for entry in group),
        reference=", ".join(settings) or None,
        passes_saved=_share_saved([(twin.passes_saved, twin.reference.passes) for twin in twins]),
        seconds_saved=_share_saved([(twin.seconds_saved, making_seconds(twin.reference)) for twin in twins]),
        psnr_db=_mean(likeness.psnr_db for likeness in near),
        worst_psnr_db=min((likeness.psnr_db for likeness in near), default=None),
        ssim=_mean(likeness.ssim for likeness in near),
        contrast=_mean(likeness.contrast for likeness in near if likeness.contrast is not None),
        cosine=_mean(
            cosine for entry in group if entry.twin and (cosine := find_end_cosine(entry, entry.twin)) is not None
        ),
        converged_psnr_db=_mean(entry.converged.likeness.psnr_db for entry in group if entry.converged),
        gain_db=_mean(entry.control.gain_db for entry in group if entry.control),
        flagged=sum(bool(entry.flags) for entry in group),
    )


@dataclass(frozen=True)
class Total:
    """One line of the published table: the sum over the references, the sum over the images, and the change.

    `change` is negative where the images took less; None where the references took nothing.
    """

    what: str
    reference: float
    image: float

    @property
    def change(self) -> float | None:
        """Relative to the references."""
        return self.image / self.reference - 1 if self.reference else None


def sum_up(comparisons: Iterable[Comparison]) -> list[Total]:
    """Passes and seconds of all images that have a twin, beside those of the twins."""
    pairs = [(entry.record, entry.twin.reference) for entry in comparisons if entry.twin]
    columns = {
        "passes": lambda record: float(record.passes),
        "denoise seconds": lambda record: record.manifest.timings.denoise,
        "decode seconds": lambda record: record.manifest.timings.decode,
        "denoise + decode seconds": making_seconds,
    }
    return [
        Total(what, math.fsum(read(other) for _, other in pairs), math.fsum(read(record) for record, _ in pairs))
        for what, read in columns.items()
    ]


def find_end_cosine(entry: Comparison, against: Against) -> float | None:
    """The cosine of the last latents, which needs those of both images."""
    last = against.cosines[-1:]
    return last[0].cosine if last and last[0].step == len(entry.record.manifest.steps) else None


def _share_saved(pairs: Sequence[tuple[float, float]]) -> float | None:
    whole = math.fsum(of for _, of in pairs)
    return math.fsum(saved for saved, _ in pairs) / whole if whole else None


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None
