"""The command line with a writer that is broken only from the first checkpoint on, and chosen only then.

A guest is kept with this process just before its first checkpoint; each broken writer goes on from there. The choice is
a name of broken_writers.BROKEN, read from the FIFO that the environment variable CHOICE names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from anima_batch import files
from crash.broken_writers import BROKEN, FOLDERS_UNSYNCED


class LateWriter:
    """Writes as it should until it meets a checkpoint, then as it is told."""

    def __init__(self, choice: Path) -> None:
        self._choice = choice
        self._right = files.write_atomic, files.sync_folder
        self._write, self._sync_folder = self._right
        self._chosen = False

    def write(self, path: Path, data: bytes) -> None:
        """In the place of files.write_atomic."""
        self._choose(path)
        self._write(path, data)

    def sync_folder(self, folder: Path) -> None:
        """In the place of files.sync_folder."""
        self._choose(folder)
        self._sync_folder(folder)

    def _choose(self, path: Path) -> None:
        if self._chosen or ".checkpoints" not in path.parts:
            return
        self._chosen = True
        name = self._choice.read_text(encoding="utf-8")  # waits for it
        self._write = BROKEN[name](self._right[0])
        if name in FOLDERS_UNSYNCED:
            self._sync_folder = lambda folder: None


def main() -> None:
    """Put the writer in the place of the real one before any other module takes it from there."""
    writer = LateWriter(Path(os.environ["CHOICE"]))
    files.write_atomic, files.sync_folder = writer.write, writer.sync_folder
    from anima_batch.cli import main as run_command_line  # noqa: PLC0415 - not before the lines above

    sys.argv[0] = "anima-batch"
    run_command_line()


if __name__ == "__main__":
    main()
