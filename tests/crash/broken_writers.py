"""The command line with a writer that is broken on purpose: `python -m crash.broken_writers NAME run JOB ...`.

These are controls: a test that cannot tell them from the real writer proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from anima_batch import files

Write = Callable[[Path, bytes], None]


def _write(path: Path, data: bytes, *, sync: bool) -> None:
    """Over the old blocks: a file that is emptied first changes as a whole where a journal takes both at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.ftruncate(descriptor, len(data))
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_in_place(path: Path, data: bytes) -> None:
    """No temporary file, nothing synced."""
    _write(path, data, sync=False)


def write_in_place_synced(path: Path, data: bytes) -> None:
    """No temporary file; the data are synced."""
    _write(path, data, sync=True)


def write_and_rename(path: Path, data: bytes) -> None:
    """A temporary file that is renamed without any sync."""
    temporary = path.with_name(path.name + ".tmp")
    _write(temporary, data, sync=False)
    temporary.rename(path)


def write_without_folder_sync(path: Path, data: bytes) -> None:
    """All but the folder's sync after the rename."""
    temporary = path.with_name(path.name + ".tmp")
    _write(temporary, data, sync=True)
    temporary.rename(path)


def leave_picture_unsynced(right: Write) -> Write:
    """Pictures are renamed without a sync, everything else is written as it should be."""

    def write(path: Path, data: bytes) -> None:
        (write_and_rename if path.suffix == ".png" else right)(path, data)

    return write


def write_manifest_first(right: Write) -> Write:
    """A picture waits until its manifest is durable."""
    waiting: dict[str, tuple[Path, bytes]] = {}

    def write(path: Path, data: bytes) -> None:
        if path.suffix == ".png":
            waiting[path.stem] = (path, data)
            return
        right(path, data)
        if path.stem in waiting:
            right(*waiting.pop(path.stem))

    return write


def remove_checkpoint_first(right: Write) -> Write:
    """An image's checkpoints go before its picture and manifest are there."""

    def write(path: Path, data: bytes) -> None:
        if path.suffix == ".png":
            shutil.rmtree(path.parent / ".checkpoints" / path.stem[-12:], ignore_errors=True)
        right(path, data)

    return write


def swallow_errors(right: Write) -> Write:
    """A write that fails is not told to anyone."""

    def write(path: Path, data: bytes) -> None:
        with contextlib.suppress(files.StorageError):
            right(path, data)

    return write


def _always(write: Write) -> Callable[[Write], Write]:
    return lambda _right: write


BROKEN: dict[str, Callable[[Write], Write]] = {
    "in place": _always(write_in_place),
    "in place, synced": _always(write_in_place_synced),
    "renamed, nothing synced": _always(write_and_rename),
    "renamed, folder not synced": _always(write_without_folder_sync),
    "picture not synced": leave_picture_unsynced,
    "manifest before picture": write_manifest_first,
    "checkpoint removed first": remove_checkpoint_first,
}
CARELESS: dict[str, Callable[[Write], Write]] = {"errors swallowed": swallow_errors}
# Writers that sync nothing do not sync new folders either.
FOLDERS_UNSYNCED = ("in place", "renamed, nothing synced", "renamed, folder not synced")


def main() -> None:
    """Put the broken writer in the place of the real one before any other module takes it from there."""
    name = sys.argv.pop(1)
    if name in FOLDERS_UNSYNCED:
        files.sync_folder = lambda folder: None
    files.write_atomic = (BROKEN | CARELESS)[name](files.write_atomic)
    from anima_batch.cli import main as run_command_line  # noqa: PLC0415 - not before the lines above

    run_command_line()


if __name__ == "__main__":
    main()
