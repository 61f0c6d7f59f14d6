"""Checkpoints: two generations of an image's sampler state, and history files that are written once."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anima_batch.errors import StorageError
from anima_batch.files import make_folder, remove_files, set_aside, storage_errors, sync_folder, write_atomic
from anima_batch.store.fencing import is_numbered
from anima_batch.store.integrity import CorruptError, describe_fault
from anima_batch.store.records import Count, Sha256
from anima_batch.store.tensors import Array, Packed, pack_tensors, packed_sha256, read_tensors

_HISTORY_TENSOR = re.compile(r"history\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)")
_HISTORY_FILE = re.compile(r"history\.(0|[1-9][0-9]*)")
_SLOT_FILE = re.compile(r"ckpt\.[01]")
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


class CheckpointFolder:
    """One image's checkpoints: `ckpt.0`, `ckpt.1` and the `history.<step>` files that they name.

    Remembers the digests of the history files that it wrote or read, so that a step writes and hashes only what is new.
    Whoever writes holds the job's folder; reading is free for all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._made = False
        self._history: dict[int, str] = {}  # step -> digest of a file that is known to lie there
        self._named: dict[int, frozenset[int]] = {}  # generation & 1 -> the steps that this slot's file names

    def load(self) -> LoadedCheckpoint:
        """The newest generation whose digests all match, else the older one; a missing folder or file is no problem.

        Raises NewerFormatError when a file was written by a later version, and StorageError when neither serves and
        one could not be read: what is not known to be damaged is not given up.
        """
        self._forget()
        slots, problems = self._read_slots()
        newest_first = sorted(slots, key=lambda slot: slot.content.generation, reverse=True)
        for slot in newest_first:
            try:
                history = self._read_history(slot)
            except CorruptError as error:
                problems.append(error)
                continue
            self._history = {int(step): digest for step, digest in slot.content.history.items()}
            content = slot.content
            whole = Checkpoint(content.generation, content.step, {**slot.tensors, **history}, content.meta)
            return LoadedCheckpoint(whole, tuple(map(str, problems)), content.generation + 1)
        self._refuse_unreadable(problems)
        # Nothing serves: what is saved next must still be newer than any file left here.
        next_generation = newest_first[0].content.generation + 1 if newest_first else 0
        return LoadedCheckpoint(None, tuple(map(str, problems)), next_generation)

    def save(self, checkpoint: Checkpoint) -> None:
        """Make it durable: new history files, then `ckpt.{generation & 1}`; then drop history that no file names.

        Take `generation` from LoadedCheckpoint.next_generation after a resume. After a StorageError the generation
        before still serves, and the same generation may be saved again.
        """
        if not self._made and not is_numbered(self.path):  # one with a number was made when it was taken
            make_folder(self.path)
        self._made = True
        own, history = _split_history(checkpoint.tensors)
        digests = {str(step): self._save_history(step, tensors) for step, tensors in sorted(history.items())}
        content = _Content(
            generation=checkpoint.generation, step=checkpoint.step, history=digests, meta=dict(checkpoint.meta)
        )
        slot = checkpoint.generation & 1
        self._named.pop(slot, None)  # until it is written, what lies there is not known
        self._write(f"ckpt.{slot}", pack_tensors("checkpoint", own, content.model_dump()))
        self._named[slot] = frozenset(history)
        self._prune_history()

    def drop(self) -> None:
        """Remove them once the image's manifest is durable; what a crash leaves is removed by a second call.

        Files that are not the store's own (set aside, or a user's) stay, and the folder with them; so does all behind a
        link to a folder elsewhere, which may be another image's. Raises StorageError.
        """
        self._forget()
        if self.path.is_symlink() or not self.path.is_dir():
            return
        with storage_errors(self.path):
            own = [path for path in self.path.iterdir() if _OWN_FILE.fullmatch(path.name) and not _is_folder(path)]
            slots = [path for path in own if _SLOT_FILE.fullmatch(path.name)]
            remove_files(slots)  # first, and durably: no slot is ever found without the history that it names
            remove_files([path for path in own if path not in slots])
            try:
                self.path.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            sync_folder(self.path.parent)

    def set_aside(self) -> Path:
        """Rename the folder as it is, so that the image starts again; the new path."""
        self._forget()
        aside = set_aside(self.path)
        if is_numbered(self.path):
            make_folder(self.path)
        return aside

    def _read_slots(self) -> tuple[list[_Slot], list[CorruptError]]:
        slots: list[_Slot] = []
        problems: list[CorruptError] = []
        for number in (0, 1):
            try:
                slot = _read_slot(self.path / f"ckpt.{number}")
            except FileNotFoundError:
                self._named[number] = frozenset()
            except CorruptError as error:
                problems.append(error)
            else:
                slots.append(slot)
                self._named[number] = frozenset(map(int, slot.content.history))
        return slots, problems

    def _read_history(self, slot: _Slot) -> dict[str, Array]:
        loaded: dict[str, Array] = {}
        needed_by = f"generation {slot.content.generation} needs it"
        for step, digest in slot.content.history.items():
            path = self.path / f"history.{step}"
            try:
                packed = _read(path, "history")
            except FileNotFoundError as error:
                raise CorruptError(f"{path}: missing, and {needed_by}: restore it or let the image restart") from error
            if packed.sha256 != digest:
                raise CorruptError(f"{path}: its sha256 must be {digest}, got {packed.sha256}: {needed_by}")
            loaded.update(packed.tensors)
        return loaded

    def _refuse_unreadable(self, problems: list[CorruptError]) -> None:
        for problem in problems:
            if isinstance(problem, _UnreadableError):
                advice = f"mend that, or move {self.path} away to start the image again"
                raise StorageError(f"{problem}: {advice}", errno=problem.errno) from problem

    def _save_history(self, step: int, tensors: Mapping[str, Array]) -> str:
        """The digest of `history.<step>`, written unless it is known to lie there."""
        name = f"history.{step}"
        if step in self._history and (self.path / name).is_file():
            return self._history[step]
        data = pack_tensors("history", tensors, {"step": step})
        self._write(name, data)
        self._history[step] = packed_sha256(data)
        return self._history[step]

    def _write(self, name: str, data: bytes) -> None:
        path = self.path / name
        if _is_folder(path):  # nothing can be renamed over it
            set_aside(path)
        write_atomic(path, data)

    def _prune_history(self) -> None:
        """Remove history files that neither generation names.

        Not synced: a file that comes back after a power cut is removed at the next save.
        """
        for number in {0, 1} - set(self._named):
            with contextlib.suppress(FileNotFoundError, CorruptError):
                self._named[number] = frozenset(map(int, _read_slot(self.path / f"ckpt.{number}").content.history))
        named = frozenset[int]().union(*self._named.values())
        with storage_errors(self.path):
            for path in list(self.path.iterdir()):
                match = _HISTORY_FILE.fullmatch(path.name)
                if match and int(match[1]) not in named and not _is_folder(path):
                    path.unlink()
        self._history = {step: digest for step, digest in self._history.items() if step in named}


class _Content(BaseModel):
    """The JSON of a `ckpt.N`; `history` maps a step to the digest of its file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    generation: Count
    step: Count
    history: dict[Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,8})$")], Sha256]
    meta: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Slot:
    """A readable `ckpt.N` before its history files are looked at."""

    content: _Content
    tensors: Mapping[str, Array]


class _UnreadableError(CorruptError):
    """A file that lies there but cannot be read: it may be whole."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: cannot be read: {error.strerror or error}")
        self.errno = error.errno


def _split_history(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[int, dict[str, Array]]]:
    own: dict[str, Array] = {}
    history: dict[int, dict[str, Array]] = {}
    for name, array in tensors.items():
        if match := _HISTORY_TENSOR.fullmatch(name):
            history.setdefault(int(match[1]), {})[name] = array
        else:
            own[name] = array
    return own, history


def _read_slot(path: Path) -> _Slot:
    """The content of a `ckpt.N`; raises FileNotFoundError, CorruptError (unreadable too) or NewerFormatError."""
    packed = _read(path, "checkpoint")
    try:
        content = _Content.model_validate(packed.meta)
    except ValidationError as error:
        raise CorruptError(f"{path}: not a valid checkpoint: {describe_fault(error)}: remove it") from error
    if path.name != f"ckpt.{content.generation & 1}":
        raise CorruptError(
            f"{path}: holds generation {content.generation}, whose place is ckpt.{content.generation & 1}: remove it"
        )
    return _Slot(content, packed.tensors)


def _read(path: Path, kind: str) -> Packed:
    try:
        return read_tensors(path, kind)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _UnreadableError(path, error) from error


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
