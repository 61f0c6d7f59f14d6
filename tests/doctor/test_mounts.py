"""The mount table in both of its forms."""

import os

from anima_batch.doctor.mounts import find_mount, parse_mounts

TABLE = r"""27 1 179:3 / / rw,relatime shared:1 - ext4 /dev/mmcblk0p3 rw,data=ordered
34 27 0:31 / /tmp rw,nosuid - tmpfs tmpfs rw
55 27 259:1 / /mnt/night\040work rw,noatime shared:31 master:2 - f2fs /dev/nvme0n1p1 rw,fsync_mode=posix
56 27 259:2 / /mnt rw - xfs /dev/sdb1 rw
57 56 259:3 / /mnt ro - ext4 /dev/sdc1 rw
not a mount
- - -
"""


def test_the_deepest_mount_wins_and_of_two_at_one_point_the_last():
    mounts = parse_mounts(TABLE)
    assert len(mounts) == 5
    found = {path: find_mount(mounts, path).source for path in ("/", "/home", "/tmp/a", "/tmpfile", "/mnt/a", "/mnt")}
    assert found == {
        "/": "/dev/mmcblk0p3", "/home": "/dev/mmcblk0p3", "/tmp/a": "tmpfs", "/tmpfile": "/dev/mmcblk0p3",
        "/mnt/a": "/dev/sdc1", "/mnt": "/dev/sdc1",
    }  # fmt: skip


def test_blanks_in_names_are_blanks_and_options_come_from_both_sides():
    mount = find_mount(parse_mounts(TABLE), "/mnt/night work/outputs")
    assert mount.point == "/mnt/night work"
    assert mount.options >= {"noatime", "fsync_mode=posix"}
    assert mount.option("fsync_mode") == "posix"
    assert mount.option("data") is None


def test_the_older_table_reads_the_same():
    (mount,) = parse_mounts("/dev/sda1 /mnt/a\\040b ext4 rw,nobarrier 0 0\n")
    assert (mount.point, mount.kind, mount.source) == ("/mnt/a b", "ext4", "/dev/sda1")
    assert "nobarrier" in mount.options


def test_no_table_has_no_mount():
    assert find_mount(parse_mounts(""), "/") is None


def test_this_machines_table_has_the_root():
    with open("/proc/self/mountinfo", encoding="utf-8") as stream:
        mounts = parse_mounts(stream.read())
    assert find_mount(mounts, os.path.realpath(__file__)) is not None
