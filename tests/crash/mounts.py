"""Mounting, and files as block devices, by the system calls themselves: a state costs milliseconds, not processes."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK_BYTES = 4096

_LOOP_CTL_GET_FREE = 0x4C82  # <linux/loop.h>
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_MS_NOSUID_NODEV = 2 | 4
_MNT_DETACH = 2
_ATTEMPTS = 50  # another process may take the free loop device that the kernel has just named

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, kind: str, options: str = "") -> None:
    """mount(2); raises OSError."""
    arguments = (source.encode(), os.fsencode(target), kind.encode(), _MS_NOSUID_NODEV, options.encode())
    if _libc.mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount: {os.strerror(number)}", str(target))


def unmount(target: Path, *, lazily: bool = False) -> None:
    """umount2(2); `lazily` also where files are still open. Raises OSError."""
    if _libc.umount2(os.fsencode(target), _MNT_DETACH if lazily else 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"umount: {os.strerror(number)}", str(target))


def sync_mounted(target: Path) -> None:
    """syncfs(2): everything in the file system at the path is on its disk; raises OSError."""
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"syncfs: {os.strerror(number)}", str(target))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def mounted_image(image: Path, target: Path, kind: str = "ext4") -> Iterator[Path]:
    """The file system in a file, mounted through a loop device that goes with the mount; raises OSError."""
    device = _attach_loop(image)
    try:
        mount(f"/dev/loop{device[1]}", target, kind)
    finally:
        os.close(device[0])
    try:
        yield target
    except BaseException:
        unmount(target, lazily=True)  # something may still be open there, and the first error is the one to tell
        raise
    unmount(target)


def _attach_loop(image: Path) -> tuple[int, int]:
    """(descriptor, number) of a loop device over the file; it is detached when nothing uses it any more."""
    backing = os.open(image, os.O_RDWR)
    try:
        for _ in range(_ATTEMPTS):
            number = _find_free_loop()
            descriptor = os.open(f"/dev/loop{number}", os.O_RDWR)
            info = struct.pack("<5Q3II176x", 0, 0, 0, 0, 0, 0, 0, 0, _LO_FLAGS_AUTOCLEAR)
            try:
                fcntl.ioctl(descriptor, _LOOP_CONFIGURE, struct.pack("<II", backing, BLOCK_BYTES) + info + bytes(64))
            except OSError as error:
                os.close(descriptor)
                if error.errno != errno.EBUSY:
                    raise
                continue
            return descriptor, number
    finally:
        os.close(backing)
    raise OSError(errno.EBUSY, "no free loop device", str(image))


def _find_free_loop() -> int:
    control = os.open("/dev/loop-control", os.O_RDWR)
    try:
        return fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
    finally:
        os.close(control)
