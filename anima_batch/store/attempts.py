"""How often an image was begun in a row without a new step, counted on disk before each start."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anima_batch.files import make_folder, remove_files, set_aside, write_atomic
from anima_batch.store.fencing import is_numbered
from anima_batch.store.integrity import CorruptError, describe_fault
from anima_batch.store.records import Count
from anima_batch.store.tensors import pack_tensors, read_tensors


@dataclass(frozen=True)
class Attempts:
    """Starts in a row that brought no new step; `step` steps were done and `boot_id` was the boot at the last of them.

    `problem` says in one line why a file was not counted.
    """

    count: int = 0
    step: int = 0
    boot_id: str = ""
    problem: str = ""


def read_attempts(folder: Path) -> Attempts:
    """What `attempts` beside the checkpoints says; none where there is no file or one that cannot be used.

    Raises NewerFormatError.
    """
    try:
        packed = read_tensors(_path(folder), "attempts")
        content = _Content.model_validate(packed.meta)
    except FileNotFoundError:
        return Attempts()
    except (OSError, CorruptError, ValidationError) as error:
        return Attempts(problem=_describe(_path(folder), error))
    return Attempts(content.count, content.step, content.boot_id)


def begin_attempt(folder: Path, step: int, boot_id: str) -> Attempts:
    """Count the start that is about to be made after `step` durable steps, durably; what now stands in the file.

    The last start is not counted if it got further than the one before, or if it ended with a reboot: power cuts alone
    never add up. A file that cannot be used is set aside and counts as none. Raises StorageError.
    """
    if not is_numbered(folder):  # such a one was made when it was taken, and may be another machine's by now
        make_folder(folder)
    before = read_attempts(folder)
    if before.problem and os.path.lexists(_path(folder)):
        before = replace(before, problem=f"{before.problem}: set aside as {set_aside(_path(folder))}")
    count = _count_before(before, step, boot_id) + 1
    content = _Content(count=count, step=step, boot_id=boot_id)
    write_atomic(_path(folder), pack_tensors("attempts", {}, content.model_dump()))
    return Attempts(count, step, boot_id, before.problem)


def clear_attempts(folder: Path) -> None:
    """Forget them: a step became durable, or the run stopped as it should. Raises StorageError."""
    if os.path.lexists(_path(folder)):
        remove_files([_path(folder)])


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    count: Annotated[Count, Field(ge=1)]
    step: Count
    boot_id: str


def _count_before(before: Attempts, step: int, boot_id: str) -> int:
    if before.step != step:
        return 0
    return before.count if before.boot_id == boot_id else max(before.count - 1, 0)


def _path(folder: Path) -> Path:
    return folder / "attempts"


def _describe(path: Path, error: OSError | CorruptError | ValidationError) -> str:
    if isinstance(error, OSError):
        return f"{path}: cannot be read: {error.strerror or error}"
    return f"{path}: {describe_fault(error)}" if isinstance(error, ValidationError) else str(error)
