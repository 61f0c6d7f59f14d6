"""What is named on the command line: a job by itself, or two jobs, folders, pictures or manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anima_batch.compare.comparison import Comparison, compare_records, compare_runs
from anima_batch.compare.records import Record, find_job, find_record, read_records
from anima_batch.errors import UsageError


@dataclass(frozen=True)
class Compared:
    """The comparisons, and a line for each file that could not be used for them."""

    comparisons: tuple[Comparison, ...]
    problems: tuple[str, ...]


def compare_paths(paths: Sequence[Path], workspace: Path, min_psnr_db: float) -> Compared:
    """One job compared in itself, or the second of two beside the first. Raises JobError, UsageError, StorageError."""
    if len(paths) > 2:
        raise UsageError(f"compare: must be given one job, or two runs or images, got {len(paths)}")
    if len(paths) == 1:
        records, problems = _read_job(paths[0], workspace)
        return Compared(tuple(compare_records(records, min_psnr_db)), tuple(problems))
    (references, problems), (records, others) = (_read(path, workspace) for path in paths)
    return Compared(tuple(compare_runs(records, references, min_psnr_db)), (*problems, *others))


def _read(path: Path, workspace: Path) -> tuple[Sequence[Record], list[str]]:
    if path.suffix.lower() not in (".png", ".json"):
        return _read_job(path, workspace)
    inside = workspace / path
    record = find_record(inside if inside.is_file() and not path.is_file() else path, workspace)
    if record.picture is None or not record.whole:
        raise UsageError(f"{path}: {record.fault or 'has no picture: the image failed'}: it cannot be compared")
    return [record], []


def _read_job(path: Path, workspace: Path) -> tuple[Sequence[Record], list[str]]:
    found = read_records(find_job(path, workspace))
    faults = [f"{entry.stem}: left out: {entry.fault}" for entry in found.records if not entry.whole]
    if not found.usable:
        raise UsageError(f"{path}: no image of it is finished: run it first")
    return found.usable, [*found.problems, *faults]
