"""Checkpoints: two generations of an image's sampler state, and history files that are written once."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anima_batch.files import (
    file_digests,
    make_folder,
    remove_files,
    sha256_bytes,
    storage_errors,
    sync_folder,
    write_atomic,
)
from anima_batch.store.integrity import CorruptError, read_regular
from anima_batch.store.tensors import Array, pack_tensors, unpack_tensors

_HISTORY_TENSOR = re.compile(r"history\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_HISTORY_FILE = re.compile(r"history\.(0|[1-9][0-9]*)")
_OWN_FILE = re.compile(r"(ckpt\.[01]|history\.(0|[1-9][0-9]*)|attempts)(\.tmp)?")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state after `step` steps; `generation` grows by one at each save and alone says which of two is the newer.

    Tensors named `history.<step>.<n>` lie in a file of their own per step; their values never change once saved.
    """

    generation: int
    step: int
    tensors: Mapping[str, Array]
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The newest checkpoint that is whole, or None, and one line for each file that could not be used."""

    checkpoint: Checkpoint | None
    problems: tuple[str, ...]
    next_generation: int


@dataclass(frozen=True)
class _Slot:
    """A readable `ckpt.N` before its history files are looked at; `history` maps a step to its file's sha256."""

    checkpoint: Checkpoint
    history: Mapping[int, str]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Make the checkpoint durable: history files first, then `ckpt.{generation & 1}`; then drop history no file names.

    Take `generation` from LoadedCheckpoint.next_generation after a resume. Raises StorageError.
    """
    make_folder(folder)
    own, history = _split_history(checkpoint.tensors)
    digests = {str(step): _save_history(folder, step, tensors) for step, tensors in sorted(history.items())}
    meta = {
        "generation": checkpoint.generation,
        "step": checkpoint.step,
        "history": digests,
        "meta": dict(checkpoint.meta),
    }
    write_atomic(_slot_path(folder, checkpoint.generation), pack_tensors("checkpoint", own, meta))
    _prune_history(folder, {int(step) for step in digests}, other=_slot_path(folder, checkpoint.generation + 1))


def load_checkpoint(folder: Path) -> LoadedCheckpoint:
    """The newest generation whose digests all match, else the older one; a missing folder or file is no problem.

    Raises NewerFormatError when a file was written by a later version.
    """
    slots, problems = _read_slots(folder)
    newest_first = sorted(slots, key=lambda slot: slot.checkpoint.generation, reverse=True)
    for slot in newest_first:
        try:
            tensors = _load_history(folder, slot)
        except CorruptError as error:
            problems.append(str(error))
            continue
        found = slot.checkpoint
        whole = Checkpoint(found.generation, found.step, {**found.tensors, **tensors}, found.meta)
        return LoadedCheckpoint(whole, tuple(problems), found.generation + 1)
    # Nothing serves: what is saved next must still be newer than any file left here.
    next_generation = newest_first[0].checkpoint.generation + 1 if newest_first else 0
    return LoadedCheckpoint(None, tuple(problems), next_generation)


def drop_checkpoint(folder: Path) -> None:
    """Remove an image's checkpoints once its manifest is durable; any part left by a crash is removed by a second call.

    Files that are not the store's own (set aside, or a user's) stay, and the folder with them. Raises StorageError.
    """
    if not folder.is_dir():
        return
    with storage_errors(folder):
        remove_files(sorted(path for path in folder.iterdir() if _OWN_FILE.fullmatch(path.name)))
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        sync_folder(folder.parent)


def _slot_path(folder: Path, generation: int) -> Path:
    return folder / f"ckpt.{generation & 1}"


def _split_history(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[int, dict[str, Array]]]:
    own: dict[str, Array] = {}
    history: dict[int, dict[str, Array]] = {}
    for name, array in tensors.items():
        if match := _HISTORY_TENSOR.fullmatch(name):
            history.setdefault(int(match[1]), {})[name] = array
        else:
            own[name] = array
    return own, history


def _save_history(folder: Path, step: int, tensors: Mapping[str, Array]) -> str:
    """The sha256 of `history.<step>`, which is written unless it lies there already with that digest."""
    data = pack_tensors("history", tensors, {"step": step})
    digest, path = sha256_bytes(data), folder / f"history.{step}"
    # An unreadable file is replaced like a wrong one; if the storage is failing, writing says so.
    with contextlib.suppress(OSError):
        if file_digests(path)[0] == digest:
            return digest
    write_atomic(path, data)
    return digest


def _prune_history(folder: Path, named: set[int], *, other: Path) -> None:
    """Remove history files that neither the checkpoint just saved nor the other generation names."""
    with contextlib.suppress(FileNotFoundError, CorruptError):
        named = named | set(_read_slot(other).history)
    with storage_errors(folder):
        matches = [(path, _HISTORY_FILE.fullmatch(path.name)) for path in folder.iterdir()]
    if stale := [path for path, match in matches if match and int(match[1]) not in named]:
        remove_files(sorted(stale))


def _read_slots(folder: Path) -> tuple[list[_Slot], list[str]]:
    slots: list[_Slot] = []
    problems: list[str] = []
    for path in (folder / "ckpt.0", folder / "ckpt.1"):
        try:
            slots.append(_read_slot(path))
        except FileNotFoundError:
            continue
        except CorruptError as error:
            problems.append(str(error))
    return slots, problems


def _read_slot(path: Path) -> _Slot:
    """The content of a `ckpt.N`; raises FileNotFoundError, CorruptError (unreadable too) or NewerFormatError."""
    tensors, meta = unpack_tensors(_read(path), "checkpoint", where=str(path))
    generation = meta["generation"]
    if _slot_path(path.parent, generation) != path:
        raise CorruptError(f"{path}: holds generation {generation}, whose place is ckpt.{generation & 1}: remove it")
    history = {int(step): digest for step, digest in meta["history"].items()}
    return _Slot(Checkpoint(generation, meta["step"], tensors, meta["meta"]), history)


def _load_history(folder: Path, slot: _Slot) -> dict[str, Array]:
    loaded: dict[str, Array] = {}
    for step, digest in slot.history.items():
        path = folder / f"history.{step}"
        needed_by = f"generation {slot.checkpoint.generation} needs it"
        try:
            data = _read(path)
        except FileNotFoundError as error:
            raise CorruptError(f"{path}: missing, and {needed_by}: restore it or let the image restart") from error
        if (found := sha256_bytes(data)) != digest:
            raise CorruptError(f"{path}: its sha256 must be {digest}, got {found}: {needed_by}")
        loaded.update(unpack_tensors(data, "history", where=str(path))[0])
    return loaded


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptError(f"{path}: cannot be read: {error.strerror}") from error
