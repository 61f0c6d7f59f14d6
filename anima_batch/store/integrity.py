"""The two ways in which a stored file is refused: it was changed, or it was written by a later version."""

from __future__ import annotations

import stat
from pathlib import Path

from pydantic import ValidationError

from anima_batch.errors import DifferenceFoundError, UsageError

_KEY_CHARACTERS = 60  # shown of a key, which may be of any length in a hostile file


class CorruptError(DifferenceFoundError):
    """A file that is torn, changed or not of the kind asked for."""


class NewerFormatError(UsageError):
    """An intact file in a format that only a later anima-batch reads; it is never treated as corrupt or replaced."""


def read_regular(path: Path, limit_bytes: int | None = None) -> bytes:
    """The bytes of a regular file; raises OSError, and CorruptError for anything else or a file beyond the limit.

    A pipe or a device would never end, and a file that is far too large is none of ours.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise CorruptError(f"{path}: must be a regular file: put it out of the way")
    if limit_bytes is not None and status.st_size > limit_bytes:
        raise CorruptError(f"{path}: must have at most {limit_bytes} bytes, got {status.st_size}: restore it")
    return path.read_bytes()


def refuse_newer(version: object, supported: int, where: str) -> None:
    """Raise NewerFormatError for a schema_version above the supported one; other values are the reader's to check."""
    if isinstance(version, int) and version > supported:
        raise NewerFormatError(
            f"{where}: schema_version: must be at most {supported}, got {version}: use the anima-batch that wrote it"
        )


def describe_fault(error: ValidationError) -> str:
    """The first field that does not fit, as `key.path: what is wrong`."""
    fault = error.errors(include_url=False)[0]
    path = ".".join(str(part)[:_KEY_CHARACTERS] for part in fault["loc"])
    return f"{path}: {fault['msg']}" if path else fault["msg"]
