"""Images compared: with the plain one that each stands in for, with a control of equal passes, with the solution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from anima_batch.compare.latents import StepCosine, first_difference, measure_cosines
from anima_batch.compare.likeness import Likeness, measure_likeness
from anima_batch.compare.records import Record
from anima_batch.compare.references import find_controls, find_converged, find_twin, subject
from anima_batch.errors import UsageError
from anima_batch.measures import Picture

_CACHED_PICTURES = 64  # those of one subject, and at 512x512 less than 50 MB


@dataclass(frozen=True)
class Against:
    """One image beside another: how near it is, what it saved, and where their latents parted.

    `latent_std` is the ratio of the last latents' standard deviations, None where the reference has none.
    """

    reference: Record
    likeness: Likeness
    latent_std: float | None
    cosines: tuple[StepCosine, ...]
    first_difference: int | None
    passes_saved: int
    seconds_saved: float

    @property
    def passes_saved_share(self) -> float | None:
        """Of the reference's passes."""
        return self.passes_saved / self.reference.passes if self.reference.passes else None

    @property
    def seconds_saved_share(self) -> float | None:
        """Of the reference's denoising and decoding."""
        seconds = making_seconds(self.reference)
        return self.seconds_saved / seconds if seconds else None


@dataclass(frozen=True)
class Control:
    """Plain sampling of equal passes, judged by the same picture; `gain_db` is what the image is nearer to it."""

    record: Record
    judge: Record
    psnr_db: float
    gain_db: float


@dataclass(frozen=True)
class Comparison:
    """One image, beside those of its references that are there; `flags` says in words what speaks against it."""

    record: Record
    twin: Against | None
    converged: Against | None
    control: Control | None
    flags: tuple[str, ...]


def making_seconds(record: Record) -> float:
    """Denoising and decoding, which is what the published times are of."""
    return record.manifest.timings.denoise + record.manifest.timings.decode


def compare_records(records: Sequence[Record], min_psnr_db: float) -> list[Comparison]:
    """Each finished image of a job beside its references, in the given order.

    Two images are of one subject only if one model set made both. Raises CorruptError or StorageError.
    """
    groups: dict[object, list[Record]] = {}
    for record in records:
        groups.setdefault((subject(record), record.manifest.model_set.digest), []).append(record)
    compared = {}
    for group in groups.values():
        gallery = _Gallery()
        for record in group:
            compared[record.path] = _compare(record, group, gallery, min_psnr_db)
    return [compared[record.path] for record in records]


def compare_runs(records: Sequence[Record], references: Sequence[Record], min_psnr_db: float) -> list[Comparison]:
    """Each image of one run beside its counterpart in another: the one of the same request, else the twin there.

    Where both runs are one image each, those two. Raises UsageError where no image has a counterpart.
    """
    found = []
    for record, reference in _pair(records, references):
        twin = _Gallery().compare(record, reference)
        found.append(Comparison(record, twin, None, None, tuple(_flag_psnr(twin, min_psnr_db))))
    if not found:
        raise UsageError("compare: no image of the first run has one of the same prompt, seed and size in the second")
    return found


def _pair(records: Sequence[Record], references: Sequence[Record]) -> Iterator[tuple[Record, Record]]:
    if len(records) == len(references) == 1:
        yield records[0], references[0]
        return
    by_subject: dict[object, list[Record]] = {}
    for reference in references:
        by_subject.setdefault(subject(reference), []).append(reference)
    for record in records:
        others = by_subject.get(subject(record), [])
        same = [other for other in others if other.manifest.request == record.manifest.request]
        counterpart = same[0] if same else find_twin(record, others)
        if counterpart is not None:
            yield record, counterpart


def _compare(record: Record, group: Sequence[Record], gallery: _Gallery, min_psnr_db: float) -> Comparison:
    twin, converged = (find(record, group) for find in (find_twin, find_converged))
    beside_twin = None if twin is None else gallery.compare(record, twin)
    beside_converged = None if converged is None else gallery.compare(record, converged)
    judged = beside_converged or beside_twin
    control = None if judged is None else _find_control(record, group, gallery, judged)
    flags = [*_flag_psnr(beside_twin, min_psnr_db), *_flag_control(control)]
    return Comparison(record, beside_twin, beside_converged, control, tuple(flags))


def _find_control(record: Record, group: Sequence[Record], gallery: _Gallery, judged: Against) -> Control | None:
    """The best of the controls."""
    judge = judged.reference
    controls = [other for other in find_controls(record, group) if other.path != judge.path]
    near = {other.path: gallery.likeness(other, judge).psnr_db for other in controls}
    best = max(controls, key=lambda other: near[other.path], default=None)
    if best is None:
        return None
    same = near[best.path] == judged.likeness.psnr_db  # infinity less infinity is no number
    return Control(best, judge, near[best.path], 0.0 if same else judged.likeness.psnr_db - near[best.path])


def _flag_psnr(against: Against | None, min_psnr_db: float) -> Iterator[str]:
    if against is not None and against.likeness.psnr_db < min_psnr_db:
        yield f"{against.likeness.psnr_db:.1f} dB to {against.reference.setting}, under {min_psnr_db:g}"


def _flag_control(control: Control | None) -> Iterator[str]:
    if control is not None and control.gain_db < 0:
        nearer = f"{-control.gain_db:.1f} dB nearer to {control.judge.setting}"
        yield f"{control.record.setting} with as many passes is {nearer}"


@dataclass
class _Gallery:
    """Pictures of one subject, each read once and each pair measured once."""

    _pictures: dict[object, Picture] = field(default_factory=dict)
    _measured: dict[object, Likeness] = field(default_factory=dict)

    def compare(self, record: Record, reference: Record) -> Against:
        std, reference_std = (_latent_std(entry) for entry in (record, reference))
        return Against(
            reference=reference,
            likeness=self.likeness(record, reference),
            latent_std=std / reference_std if std is not None and reference_std else None,
            cosines=measure_cosines(record, reference),
            first_difference=first_difference(record, reference),
            passes_saved=reference.passes - record.passes,
            seconds_saved=making_seconds(reference) - making_seconds(record),
        )

    def likeness(self, record: Record, reference: Record) -> Likeness:
        pair = (record.path, reference.path)
        if pair not in self._measured:
            self._measured[pair] = measure_likeness(self._read(record), self._read(reference))
        return self._measured[pair]

    def _read(self, record: Record) -> Picture:
        if record.path not in self._pictures:
            while len(self._pictures) >= _CACHED_PICTURES:
                self._pictures.pop(next(iter(self._pictures)))
            self._pictures[record.path] = record.read_pixels()
        return self._pictures[record.path]


def _latent_std(record: Record) -> float | None:
    return record.manifest.latents.std if record.manifest.latents else None
