"""The one way to write a file, digests, the folder lock, and setting a file aside."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from anima_batch.errors import FolderLockedError, StorageError

_BLOCK_BYTES = 1 << 20
_MACHINE_FAULTS = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """JSON with sorted keys and no blanks, so that equal values have equal bytes; NaN and Infinity are refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_bytes(data: bytes) -> str:
    """SHA-256 as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()


def xxh3_128_bytes(data: bytes | memoryview) -> str:
    """XXH3 with 128 bits as 32 lower-case hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def file_digests(path: Path, *, sha256: bool = True) -> tuple[str, str]:
    """(sha256, xxh3_128) of a whole regular file in one read; sha256 is empty when not asked for. Raises OSError."""
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device would never end
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    secure, fast = hashlib.sha256(), xxhash.xxh3_128()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            fast.update(block)
            if sha256:
                secure.update(block)
    return (secure.hexdigest() if sha256 else ""), fast.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable: a rename or mkdir is lost at a power cut without it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create the folder and its parents, each made durable in its own parent; one that exists is made durable too.

    A process that was killed between its mkdir and the sync leaves a folder that a power cut may still take, with all
    that was put in it since. It went no deeper, so the parents of what exists are durable.
    """
    with storage_errors(folder):
        if folder.is_dir():
            with contextlib.suppress(PermissionError):  # then we cannot have made it: the sync after mkdir fails too
                sync_folder(folder.parent)
            return
    make_folder(folder.parent)
    with storage_errors(folder):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Write the file so that at any power cut it holds either its old bytes or all of `data`.

    `<name>.tmp` in the same folder, write, fsync, close, rename, fsync of the folder. After an I/O error all of it is
    done once more with a fresh file, since a retried fsync of the same one may report success for lost pages. A
    temporary file that could not be written is removed: a full disk gets its space back. Raises StorageError.
    """
    with storage_errors(path):
        try:
            _replace(path, data)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _replace(path, data)


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        _write_synced(temporary, data)
        temporary.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    # O_EXCL: always a file of our own, never one whose pages were lost before, a link's target or another name's file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileExistsError:  # a process that was killed left it
        path.unlink()
        descriptor = os.open(path, flags, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_files(paths: list[Path]) -> None:
    """Remove files that may be missing already, then make their folders durable."""
    for path in paths:
        with storage_errors(path):
            path.unlink(missing_ok=True)
    for folder in sorted({path.parent for path in paths}):
        if folder.is_dir():
            with storage_errors(folder):
                sync_folder(folder)


def set_aside(path: Path) -> Path:
    """Rename a file or folder that must not be used any more to `<name>.aside-N`; nothing is ever deleted for it."""
    number = 1
    while os.path.lexists(target := path.with_name(f"{path.name}.aside-{number}")):  # a dangling link is in the way too
        number += 1
    with storage_errors(path):
        path.rename(target)
        sync_folder(path.parent)
    return target


def is_disk_full(error: StorageError) -> bool:
    """Whether a write failed for want of room, which may come back, and not because the storage fails."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "free some space, then run the same command again",
            errno.EDQUOT: "free some space, then run the same command again",
            errno.EROFS: "remount it writable, then run the same command again",
            errno.EIO: "the storage is failing: check the kernel log and copy the folder away",
        }.get(error.errno or 0, "everything written before is kept; mend it and run the same command again")
        raise StorageError(f"{path}: {error.strerror or error}: {advice}", errno=error.errno) from error


@contextlib.contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder by flock on its descriptor; raises FolderLockedError with the holder's pid, or waits for it.

    The lock goes with the process, so there is no stale lock file after a power cut. Raises StorageError for a folder
    that is missing or cannot be locked.
    """
    with storage_errors(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with storage_errors(folder):
            _lock_descriptor(descriptor, folder, wait=wait)
        yield
    finally:
        os.close(descriptor)


def _lock_descriptor(descriptor: int, folder: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        pid = _lock_holder(os.fstat(descriptor))
        holder = f"pid {pid}" if pid else "another process"
        raise FolderLockedError(
            f"{folder}: held by {holder}, which runs this job: wait for it or stop it, then run the same command again"
        ) from error


def _lock_holder(status: os.stat_result) -> int | None:
    """The pid that holds a flock on the inode, from /proc/locks; None where the kernel does not tell."""
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == inode and int(fields[4]) > 0:
                return int(fields[4])
    return None


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """The bytes of a regular file of at most so many; raises OSError, for a larger or another kind of file too.

    A pipe or a device would never end, and a file that is far too large would only fill the memory. Raises StorageError
    where the machine fails and not the file: nobody's input is wrong then.
    """
    try:
        status = path.stat()  # before it is opened: a pipe would wait for its other side
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if status.st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", str(path))
        return path.read_bytes()
    except OSError as error:
        if error.errno in _MACHINE_FAULTS:
            with storage_errors(path):
                raise
        raise


def read_json(path: Path, *, what: str, error: Callable[[str], Exception], limit_bytes: int = 1 << 28) -> Any:  # noqa: ANN401 - any JSON value
    """The JSON value of a file, or `error` with one line that names the file and the fault."""
    try:
        return json.loads(read_bounded(path, limit_bytes).decode("utf-8"))
    except OSError as cause:
        raise error(f"{path}: {what} cannot be read: {cause.strerror}") from cause
    except (ValueError, RecursionError) as cause:  # RecursionError: thousands of brackets
        raise error(f"{path}: {what} is not valid JSON: {cause}") from cause
