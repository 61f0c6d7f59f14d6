"""The folder in which a model set is made before it gets its name."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from anima_batch.errors import UsageError
from anima_batch.files import lock_folder, make_folder, storage_errors, sync_folder


def check_out(out: Path) -> None:
    """Raise UsageError where something of that name is there already."""
    if out.exists():
        raise UsageError(f"{out}: is there already: remove it, or choose another folder")


@contextlib.contextmanager
def partial_folder(out: Path, *, resume: bool = False) -> Iterator[Path]:
    """`<out>.partial`, held by its lock, which becomes `out` at the end.

    With `resume` it is left as it is found, and when the block fails; without, it is empty and goes if the block fails.
    What a killed conversion left there is nobody's: the lock tells that nobody is writing it.
    """
    partial = out.with_name(out.name + ".partial")
    make_folder(partial)
    with lock_folder(partial):
        if not resume:
            _empty_folder(partial)
        try:
            yield partial
        except BaseException:
            if not resume:
                shutil.rmtree(partial, ignore_errors=True)  # the first error is the one to tell
            raise
        with storage_errors(out):
            for folder in (partial, *(path for path in partial.iterdir() if path.is_dir())):
                sync_folder(folder)
            partial.rename(out)
            sync_folder(out.parent)


def _empty_folder(folder: Path) -> None:
    with storage_errors(folder):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
