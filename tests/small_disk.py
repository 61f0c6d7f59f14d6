"""Real file systems of a few megabytes, to be filled up and to turn read-only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

DISK_BYTES = 8 << 20  # the least that gives ext4 a journal


class SmallDisk:
    """A mounted file system; the file `filler` takes its room away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    @property
    def free_bytes(self) -> int:
        """What can still be written."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def fill(self, *, leave: int = 0) -> None:
        """Take all but so many bytes, in whole blocks."""
        with self._filler.open("ab") as stream:
            os.posix_fallocate(stream.fileno(), 0, stream.tell() + self.free_bytes - leave)

    def empty(self) -> None:
        """Give the room back."""
        self._filler.unlink()

    def remount(self, option: str, seconds: float = 60) -> None:
        """`ro` or `rw`; waits for a moment in which no file is open for writing."""
        end = time.monotonic() + seconds
        while (
            ended := subprocess.run(["mount", "-o", f"remount,{option}", self.folder], capture_output=True)
        ).returncode:
            if time.monotonic() > end:
                raise TimeoutError(ended.stderr.decode())


@contextlib.contextmanager
def mounted_disk(kind: str, folder: Path, mkfs: str) -> Iterator[SmallDisk]:
    """A new file system, `tmpfs` or `ext4`, at `<folder>/disk`."""
    target, image = folder / "disk", folder / "image"
    target.mkdir()
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", target], check=True)
    else:
        image.touch()
        os.truncate(image, DISK_BYTES)
        subprocess.run([mkfs, "-q", "-b", "4096", "-m", "0", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, target], check=True)
    try:
        yield SmallDisk(target)
    finally:
        subprocess.run(["umount", "--lazy", target], check=True)  # a process that was just killed may still be there
