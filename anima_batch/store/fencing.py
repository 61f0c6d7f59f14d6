"""Who may write an image's checkpoints: each machine that takes it over renames their folder to the next number.

Whoever had it before, and wakes late, finds its path gone: nothing that it still writes reaches the files that count.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from anima_batch.files import make_folder, storage_errors, sync_folder

_NUMBERED = re.compile(r"(?P<name>[0-9a-f]+)(\.(?P<number>[1-9][0-9]{0,8}))?")


def find_folder(base: Path) -> Path:
    """The folder of an image's checkpoints that counts: `base.N` with the highest number, else `base`."""
    return max(_numbered(base), default=(0, base))[1]


def list_folders(folder: Path) -> list[Path]:
    """All of the image, those of machines that were taken for lost among them; `folder` is any one of them."""
    return [path for _, path in sorted(_numbered(folder.with_name(folder.name.partition(".")[0])))]


def is_numbered(folder: Path) -> bool:
    """Whether a machine took it that may still be alive; one without a number goes with the job's folder lock."""
    match = _NUMBERED.fullmatch(folder.name)
    return match is not None and match["number"] is not None


def take_folder(folder: Path) -> Path:
    """Make the checkpoints the caller's: the folder that counts becomes `base.N+1`, durably; else that is made.

    `folder` is any one of the image. Raises StorageError.
    """
    base = folder.with_name(folder.name.partition(".")[0])
    make_folder(base.parent)
    while True:
        number, before = max(_numbered(base), default=(0, base))
        mine = base.with_name(f"{base.name}.{number + 1}")
        with storage_errors(mine):
            try:
                before.rename(mine)
            except FileNotFoundError:
                if number or base.is_dir():  # another one took it a moment ago
                    continue
                try:
                    mine.mkdir()
                except FileExistsError:
                    continue
            sync_folder(base.parent)
        return mine


def image_of(folder: Path) -> str | None:
    """The short request id of an image whose checkpoints lie there, by the folder's name; None for another folder."""
    match = _NUMBERED.fullmatch(folder.name)
    return match["name"] if match else None


def _numbered(base: Path) -> list[tuple[int, Path]]:
    """(number, folder) of each; `base` itself has the number 0."""
    found = []
    with storage_errors(base.parent), contextlib.suppress(FileNotFoundError), os.scandir(base.parent) as entries:
        for entry in entries:
            match = _NUMBERED.fullmatch(entry.name)
            # The entry itself knows that it is a folder: its path may have another name already.
            if match and match["name"] == base.name and entry.is_dir():
                found.append((int(match["number"] or 0), base.with_name(entry.name)))
    return found
