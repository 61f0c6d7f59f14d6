"""Where model sets are looked for: the workspace's `models/`, then the built-in ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from anima_batch.errors import ModelSetError, ModelSetNotFoundError
from anima_batch.model_set.store import FILE_NAME, ModelSet, load_model_set


class ModelSetScan(NamedTuple):
    """The sets that can be read, and one line for each that cannot: neither hides the other."""

    sets: tuple[ModelSet, ...]
    problems: tuple[str, ...]


def built_in_folder() -> Path:
    """Where the model sets that ship with the package lie."""
    return Path(__file__).parents[1] / "models"


def scan_model_sets(workspace: Path) -> ModelSetScan:
    """The sets of the workspace's `models/`, then the built-in ones, each by name."""
    sets, problems = [], []
    for folder in _set_folders(workspace):
        try:
            sets.append(load_model_set(folder))
        except (ModelSetError, ModelSetNotFoundError) as error:
            problems.append(str(error))
    return ModelSetScan(tuple(sets), tuple(problems))


def _set_folders(workspace: Path) -> Iterator[Path]:
    for parent in (workspace / "models", built_in_folder()):
        yield from (path.parent for path in sorted(parent.glob(f"*/{FILE_NAME}")))


def find_model_set(name: str, workspace: Path) -> ModelSet:
    """A set by its folder's name in `models/`, then a built-in one, then by path; raises ModelSetNotFoundError."""
    for folder in (workspace / "models" / name, built_in_folder() / name, workspace / name):
        if os.path.isfile(folder / FILE_NAME):  # False for a name that is too long, where Path.is_file raises
            return load_model_set(folder)
    known = sorted({folder.name for folder in _set_folders(workspace)})
    raise ModelSetNotFoundError(
        f"model_set: must be one of {', '.join(known)} or a folder with {FILE_NAME}, got {name!r} "
        f"(looked in {workspace / 'models'}, then among the built-in ones)"
    )


def find_by_digest(digest: str, workspace: Path) -> tuple[ModelSet, ...]:
    """All sets with that digest, whatever their folders are called; sets that cannot be read are passed over."""
    return tuple(model_set for model_set in scan_model_sets(workspace).sets if model_set.digest == digest)
