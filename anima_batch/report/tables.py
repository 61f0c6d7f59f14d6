"""What the page says beside the pictures, as plain rows: times by setting, checks, warnings, environments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from anima_batch.compare import Record, Records

PHASES = ("encode", "load", "init", "run", "host", "release", "decode")


@dataclass(frozen=True)
class TimeRow:
    """Mean seconds of one image of a setting; the phases of denoising may overlap."""

    setting: str
    images: int
    phases: Mapping[str, float]
    denoise: float
    total: float
    passes: tuple[int, ...]

    @property
    def drawn(self) -> float:
        """The length of its bar: the sum of the phases."""
        return sum(self.phases.values())


def read_times(records: Sequence[Record]) -> list[TimeRow]:
    """One a setting, over its finished images."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.manifest.status == "done":
            groups.setdefault(record.setting, []).append(record)
    return [_mean_times(setting, group) for setting, group in groups.items()]


def _mean_times(setting: str, group: Sequence[Record]) -> TimeRow:
    timings = [record.manifest.timings for record in group]
    return TimeRow(
        setting=setting,
        images=len(group),
        phases={phase: max(0.0, fmean(getattr(timing, phase) for timing in timings)) for phase in PHASES},
        denoise=fmean(timing.denoise for timing in timings),
        total=fmean(timing.total for timing in timings),
        passes=tuple(step.passes for step in group[0].manifest.steps),
    )


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: in how many images it holds, of how many, and the names of the others."""

    name: str
    good: int
    total: int
    others: tuple[str, ...]


def read_checks(found: Records) -> list[Check]:
    """What manifests and files say of each image."""
    done = [record for record in found.records if record.manifest.status == "done"]
    return [
        _check("image made", found.records, lambda record: record.manifest.status == "done"),
        _check("file is the one recorded (SHA-256)", done, lambda record: not record.fault),
        _check("picture is the one recorded", done, lambda record: record.whole),
        _check("latents finite at every step", found.records, _is_finite),
        _check("picture has more than one colour", done, lambda record: record.manifest.checks.not_flat is not False),
        _check("made without a warning", found.records, lambda record: not record.manifest.warnings),
    ]


def _check(name: str, records: Sequence[Record], holds: Any) -> Check:  # noqa: ANN401
    others = tuple(record.stem for record in records if not holds(record))
    return Check(name, len(records) - len(others), len(records), others)


def _is_finite(record: Record) -> bool:
    steps = record.manifest.steps
    return record.manifest.checks.finite and not any(step.nan or step.inf for step in steps)


def group_warnings(records: Iterable[Record]) -> list[tuple[str, list[str]]]:
    """Each warning with the stems of its images."""
    groups: dict[str, list[str]] = {}
    for record in records:
        for warning in record.manifest.warnings:
            groups.setdefault(warning, []).append(record.stem)
    return list(groups.items())


@dataclass(frozen=True)
class EnvironmentRow:
    """One fact in each of the environments; `differs` where it is not the same in all."""

    name: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether a picture may hang on it."""
        return len(set(self.values)) > 1


def read_environments(records: Sequence[Record]) -> tuple[list[int], list[EnvironmentRow]]:
    """How many images each environment made, and its facts; facts that no environment has are left out."""
    counts: dict[tuple[tuple[str, str | None], ...], int] = {}
    for record in records:
        facts = {**record.manifest.environment.model_dump()}
        key = tuple(facts.items())
        counts[key] = counts.get(key, 0) + 1
    tables = [dict(key) for key in counts]
    names = [name for name in (tables[0] if tables else {}) if any(table[name] is not None for table in tables)]
    rows = [EnvironmentRow(name, tuple(table[name] or "none" for table in tables)) for name in names]
    return list(counts.values()), rows


def read_model_sets(records: Sequence[Record]) -> list[tuple[Any, int]]:
    """Each model set's record, and how many images it made."""
    sets: dict[str, tuple[Any, int]] = {}
    for record in records:
        model_set = record.manifest.model_set
        sets[model_set.digest] = (model_set, sets.get(model_set.digest, (None, 0))[1] + 1)
    return list(sets.values())
