"""Judges where the pictures will lie: the file system, its options, and the room on it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from anima_batch.doctor.check import Check, Status, make_check, unreadable
from anima_batch.doctor.machine import Machine
from anima_batch.doctor.mounts import Mount, find_mount
from anima_batch.doctor.need import Need
from anima_batch.doctor.process import Process
from anima_batch.doctor.software import not_recorded

FREE_GOOD = 1 << 30  # bytes, where no job says how much
FILES_AN_IMAGE = 4  # picture and manifest, each with its temporary file

MEASURED = ("ext4", "f2fs")  # power was cut under them, again and again
TRUSTED = (*MEASURED, "btrfs", "xfs", "ext3", "zfs", "bcachefs")  # they keep what fsync promises, by their makers' word
_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "rootfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "glusterfs", "fuse.sshfs", "afs")
_UNJOURNALLED = ("vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "ext2", "hfsplus", "udf")
_NO_BARRIERS = ("nobarrier", "barrier=0", "barrier=none")

Fault = tuple[Status, str, str]  # how bad, what, the fix


def judge_storage(machine: Machine, process: Process | None, outputs: str, need: Need) -> Iterator[Check]:
    """The file system of the folder `outputs` (absolute, as in the mount table), and its room."""
    yield _judge_file_system(machine, outputs)
    yield not_recorded("free_space") if process is None else _judge_space(process, need)


def _judge_file_system(machine: Machine, outputs: str) -> Check:
    allowed = "ext4, f2fs, btrfs or xfs on a local disk, writable, barriers on"
    mount = find_mount(machine.mounts, outputs)
    if mount is None:
        reading = machine.mount_table
        found = reading.complaint if not reading.text else f"{outputs} is on none of the mounts of {reading.path}"
        return unreadable("file_system", found, allowed, denied=reading.denied)
    found = f"{mount.kind} on {mount.source} at {mount.point}"
    faults = list(_find_faults(mount, machine.mounts))
    if not faults:
        return Check("file_system", "ok", found, allowed)
    worst = next((fault for fault in faults if fault[0] == "fail"), faults[0])
    told = "; ".join(text for _, text, _ in faults)
    return Check("file_system", worst[0], f"{found}: {told}", allowed, worst[2])


def _find_faults(mount: Mount, mounts: Iterable[Mount]) -> Iterator[Fault]:
    """The worst first in each group: what it lies on, then how it is mounted."""
    yield from _kind_faults(mount, mounts)
    remount = f"sudo mount -o remount,{{}} {shlex.quote(mount.point)}; mend /etc/fstab too"
    if "ro" in mount.options:
        yield "fail", "read-only", remount.format("rw")
    if barrier := next((option for option in _NO_BARRIERS if option in mount.options), None):
        on = "barrier=1" if mount.kind.startswith("ext") else "barrier"
        yield "fail", f"{barrier}: a power cut breaks even what was synced", remount.format(on)
    if mount.option("fsync_mode") == "nobarrier":
        yield "fail", "fsync_mode=nobarrier: fsync does not reach the disk", remount.format("fsync_mode=posix")
    if (mount.option("checkpoint") or "").startswith("disable"):
        yield "fail", "checkpoint=disable: a power cut undoes all since the mount", remount.format("checkpoint=enable")
    if mount.option("data") == "writeback":
        fix = "take data=writeback out of /etc/fstab and rootflags=, then reboot"
        yield "warn", "data=writeback: files that are not synced may hold old blocks after a cut", fix


def _kind_faults(mount: Mount, mounts: Iterable[Mount]) -> Iterator[Fault]:
    elsewhere = "anima-batch run JOB --workspace DIR, with DIR on a local disk (findmnt -t ext4,f2fs,btrfs,xfs)"
    if mount.kind in _MEMORY or mount.source.startswith("/dev/zram"):
        yield "fail", "in memory: a power cut takes all of it", elsewhere
    elif mount.kind == "overlay":
        upper = find_mount(mounts, mount.option("upperdir") or "")
        if upper is not None and upper.kind in _MEMORY:
            yield "fail", "an overlay whose changes are in memory: a power cut takes them", elsewhere
        else:
            yield "warn", "a container's layer: it goes with the container", f"{elsewhere}; in a container: -v DIR:DIR"
    elif mount.kind in _REMOTE:
        yield "warn", "on a network: what survives a cut is the server's affair, and locks may not hold", elsewhere
    elif mount.kind in _UNJOURNALLED:
        yield "warn", "no journal: a power cut may damage the file system itself", elsewhere
    elif mount.kind not in TRUSTED:
        yield "warn", "never tried with power cuts", elsewhere


def _judge_space(process: Process, need: Need) -> Check:
    needed, space = need.disk_bytes, process.space
    images = "1 image" if need.images == 1 else f"{need.images} images"
    allowed = f"{FREE_GOOD / 1e6:.0f} MB or more" if needed is None else f"{needed / 1e6:.0f} MB for {images}"
    fix = f"free some space (sudo du -xhd1 {shlex.quote(need.outputs)}), or run a part with --limit"
    if space is None:
        return unreadable("free_space", f"{need.outputs}: cannot be asked", allowed, denied=False)
    found = f"{space.free_bytes / 1e6:.0f} MB free"
    if needed is None:
        status: Status = "ok" if space.free_bytes >= FREE_GOOD else "warn" if space.free_bytes else "fail"
        return make_check("free_space", status, found, allowed, fix)
    files = FILES_AN_IMAGE * (need.images or 0)
    if space.files is not None and space.files < files:
        return Check(
            "free_space", "fail", f"{found}, but room for {space.files} files only", f"{allowed}, {files} files", fix
        )
    short = space.free_bytes + need.held_bytes < needed
    return Check("free_space", "fail" if short else "ok", found, allowed, fix if short else None)
