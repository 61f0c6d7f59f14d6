"""What this very process tells."""

import ctypes
import os
import platform
import shutil
import sys
import time

import pytest

from anima_batch.doctor.process import existing_folder, read_process


def test_this_process_tells_its_python_clock_and_room(tmp_path):
    process = read_process(str(tmp_path / "not/yet/there"))
    assert process.machine == platform.machine()
    assert process.python == sys.version_info[:2]
    assert abs(process.seconds - time.time()) < 5
    assert process.synchronized in (True, False, None)
    assert process.space is not None
    free = shutil.disk_usage(tmp_path).free
    assert abs(process.space.free_bytes - free) < 0.1 * free + 1e9  # others write meanwhile


class Timex(ctypes.Structure):
    """The start of `struct timex` (adjtimex(2)), named field by field."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    ]


def test_the_clock_is_synchronized_where_the_kernel_says_so():
    timex = Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
        pytest.skip("the kernel may not be asked here")
    assert read_process("/").synchronized == (not timex.status & 0x40)


def test_the_nearest_folder_that_exists_is_found_through_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real = os.path.realpath(tmp_path)
    assert existing_folder(str(tmp_path / "link/a/b")) == f"{real}/real"
    (tmp_path / "file").touch()
    assert existing_folder(str(tmp_path / "file/a")) == real
    assert existing_folder("/none/at/all") == "/"
