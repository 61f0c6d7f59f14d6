"""Room on the disk: checked before the start, and a part of it held back for the last writes of an image."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from anima_batch.errors import StorageError
from anima_batch.files import is_disk_full, remove_files, storage_errors

T = TypeVar("T")

_BLOCK_BYTES = 1 << 20
_RESERVE = ".reserve"


def check_space(folder: Path, needed_bytes: int, begun: Path) -> None:
    """Raise StorageError where the folder's file system has less room than what is still to be written.

    A job that had room must have it after a power cut too: what lies in the first image's checkpoints `begun` is part
    of what is needed.
    """
    with storage_errors(folder):
        there = sum(path.lstat().st_size for path in begun.iterdir()) if begun.is_dir() else 0
        free = shutil.disk_usage(folder).free + there
    if free < needed_bytes:
        raise StorageError(
            f"{folder}: {free / 1e6:.0f} MB free, the images still to make need about {needed_bytes / 1e6:.0f} MB: "
            "free some space, or run a part with --limit"
        )


def drop_reserve(folder: Path) -> bool:
    """Remove the reserve that a killed run left; False if there is none. Raises StorageError."""
    path = folder / _RESERVE
    if not os.path.lexists(path):
        return False
    remove_files([path])  # synced: some file systems hand freed blocks out only after that
    return True


class Reserve:
    """`.reserve` in the job's outputs: blocks that are taken now and given back for a write that finds no others.

    It goes at the end of the `with` block.
    """

    def __init__(self, folder: Path, bytes: int) -> None:  # noqa: A002 - the file's bytes
        self.path = folder / _RESERVE
        self.bytes = bytes

    def __enter__(self) -> Reserve:
        self.make()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(StorageError):  # a disk that fails now says so elsewhere; the next run takes it over
            self.release()

    def make(self) -> bool:
        """Take the blocks unless they are held already; False if there is no room. Raises StorageError."""
        try:
            with storage_errors(self.path):
                return self._held() or self._take()
        except StorageError as error:
            if not is_disk_full(error):
                raise
            return False

    def release(self) -> bool:
        """Give the blocks back; False if none were held. Raises StorageError."""
        return drop_reserve(self.path.parent)

    def retry(self, write: Callable[[], T]) -> T:
        """What `write` returns; if it finds the disk full it is called once more with the reserve given back."""
        try:
            return write()
        except StorageError as error:
            if not is_disk_full(error) or not self.release():
                raise
        return write()

    def _held(self) -> bool:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return False
        return status.st_size >= self.bytes and status.st_blocks * 512 >= self.bytes

    def _take(self) -> bool:
        self.path.unlink(missing_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            _fill(descriptor, self.bytes)
        except OSError:
            with contextlib.suppress(OSError):
                self.path.unlink()
            raise
        finally:
            os.close(descriptor)
        return True


def _fill(descriptor: int, wanted: int) -> None:
    """Give the file real blocks; where the file system cannot allocate without writing, zeros are written."""
    try:
        os.posix_fallocate(descriptor, 0, wanted)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        for start in range(0, wanted, _BLOCK_BYTES):
            os.pwrite(descriptor, bytes(min(_BLOCK_BYTES, wanted - start)), start)
