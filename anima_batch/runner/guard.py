"""Whether the model set still is the one that was checked before the run."""

from __future__ import annotations

import os

from anima_batch.errors import ModelSetError
from anima_batch.model_set import ModelSet, verify_model_set

Signature = tuple[tuple[int, ...] | None, ...]


class ModelSetGuard:
    """Every file's digest at the start, then after each step whether any file was touched: a few microseconds each.

    A file that was touched is read again; sessions are opened during the whole run, so a replaced one would act on
    pictures whose manifests name the old one.
    """

    def __init__(self, model_set: ModelSet) -> None:
        self._model_set = model_set
        self._signature = self._read_signature()
        self._verify("is not what its digests say: restore it, or seal it anew")

    def check(self) -> None:
        """Raise ModelSetError if a file is not what it was."""
        signature = self._read_signature()
        if signature != self._signature:
            self._verify("changed while the job ran: restore it, then run the same command again")
            self._signature = signature

    def _verify(self, what: str) -> None:
        if problems := verify_model_set(self._model_set):
            raise ModelSetError(*problems, f"{self._model_set.folder}: the model set {what}")

    def _read_signature(self) -> Signature:
        """Of each file what changes when it is written or replaced."""
        return tuple(_stat(self._model_set.folder / part.path) for part in self._model_set.description.components)


def _stat(path: os.PathLike[str]) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
