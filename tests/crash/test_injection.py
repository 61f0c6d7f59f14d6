"""Kills and errors at single calls; `python -m crash --only strace` tries all of them."""

import sys

import pytest

from crash.injection import Start, Trial, Workshop
from crash.report import Scale
from crash.storage_points import Point, list_points

PROGRAM = """
import os
os.makedirs("outputs/job")
for name in ("a", "b"):
    descriptor = os.open("outputs/job/x.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, b"outputs")
    os.fsync(descriptor)
    os.rename("outputs/job/x.tmp", f"outputs/job/{name}")
os.read(os.open("outputs/job/a", os.O_RDONLY), 9)
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory, need_tool):
    need_tool("strace")
    return Workshop(Scale(0.01, 1, tmp_path_factory.mktemp("crash")))


@pytest.fixture(scope="module")
def start(workshop):
    return workshop.start_from_nothing()


def test_points_are_counted_by_call_and_path(tmp_path, need_tool):
    need_tool("strace")
    one = [Point(call, "outputs/job/x.tmp", 1) for call in ("openat", "write", "fsync", "rename")]
    two = [Point(call, "outputs/job/x.tmp", 2) for call in ("openat", "write", "fsync", "rename")]
    last = [Point("openat", "outputs/job/a", 1, writing=False), Point("read", "outputs/job/a", 1)]
    folders = [Point("mkdir", "outputs", 1), Point("mkdir", "outputs/job", 1)]
    found = list_points([sys.executable, "-c", PROGRAM], tmp_path)
    assert found == [*folders, *one, *two, *last]


def find(start: Start, call: str, suffix: str) -> Point:
    return next(point for point in start.points if point.syscall == call and point.path.endswith(suffix))


@pytest.mark.parametrize(("fault", "call", "suffix"), [
    ("SIGKILL", "rename", ".png.tmp"),
    ("SIGKILL", "fsync", "ckpt.1.tmp"),
    ("ENOSPC", "write", ".json.tmp"),
    ("EIO", "fsync", ".png.tmp"),
    ("EROFS", "mkdir", "manifests"),
    ("EMFILE", "openat", "ckpt.0.tmp"),
])  # fmt: skip
def test_a_job_ends_well_after_a_fault(workshop, start, fault, call, suffix):
    trial = Trial(start, find(start, call, suffix), fault)
    assert workshop.try_one(trial) == ([], True)


def test_a_step_that_a_full_disk_did_not_take_is_not_said_to_be_durable(workshop, start):
    """The folder's sync fails for good after the checkpoint's rename: the image goes on without saving."""
    syncs = [point for point in start.points if point.syscall == "fsync" and point.path == "outputs/job"]
    for point in syncs:
        assert workshop.try_one(Trial(start, point, "ENOSPC", lasting=True)) == ([], True)
