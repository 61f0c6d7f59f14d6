"""The one rule for paths that stand in files: they lie below the folder that they are relative to."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

PATH_REFUSED = "relative_path"  # the type of the fault
PATH_BYTES = 1024
NAME_BYTES = 255  # what Linux file systems allow
_SHOWN = 60


def _check_path(path: str) -> str:
    pure = PurePosixPath(path)
    below = bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts
    short = len(path.encode()) <= PATH_BYTES and all(len(part.encode()) <= NAME_BYTES for part in pure.parts)
    if below and short and "\0" not in path:
        return path
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}..."
    raise PydanticCustomError(
        PATH_REFUSED,
        "must be a path below the folder: relative, no '..', no NUL, at most {limit} bytes, got {path}",
        {"limit": PATH_BYTES, "path": repr(shown)},
    )


RelativePath = Annotated[str, AfterValidator(_check_path)]
