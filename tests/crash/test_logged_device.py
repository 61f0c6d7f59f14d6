"""A real file system on the logged disk."""

import os
import subprocess

import pytest

from crash.logged_device import Event, Flush, LoggedDevice, Write, apply
from crash.mounts import mounted_image, sync_mounted

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="needs root, to mount a file system"
)


@pytest.fixture
def image(tmp_path, need_tool):
    path = tmp_path / "image"
    path.touch()
    os.truncate(path, 8 << 20)
    subprocess.run([need_tool("mkfs.ext4"), "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0", path], check=True)
    return path


@pytest.fixture
def mounted(tmp_path):
    folder = tmp_path / "mounted"
    folder.mkdir()
    return folder


def write_synced(path, data):
    with path.open("wb") as file:
        file.write(data)
        os.fsync(file.fileno())


def test_what_is_said_after_a_sync_comes_after_its_writes_and_a_flush(tmp_path, image, mounted):
    with LoggedDevice(image.read_bytes(), tmp_path / "fuse") as device, mounted_image(device.disk, mounted):
        sync_mounted(mounted)
        first = len(device.log)
        write_synced(mounted / "a", b"x" * 10_000)
        with device.events.open("ab", buffering=0) as events:
            events.write(b"synced\n")
        log = device.log[first:]
    said = log.index(Event("synced"))
    assert sum(isinstance(entry, Write) and b"xxxx" in entry.data for entry in log[:said]) == 3
    assert isinstance(log[said - 1], Flush)


def test_a_disk_made_from_the_log_has_what_was_synced(tmp_path, image, mounted):
    before = image.read_bytes()
    with LoggedDevice(before, tmp_path / "fuse") as device:
        with mounted_image(device.disk, mounted):
            write_synced(mounted / "a", b"x" * 10_000)
            synced = len(device.log)
        log = device.log
    disk = bytearray(before)
    apply(disk, log[:synced])
    image.write_bytes(disk)
    with mounted_image(image, mounted):  # as it was when the power went: the journal is replayed
        assert (mounted / "a").read_bytes() == b"x" * 10_000
