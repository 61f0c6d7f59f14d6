"""Whatever lies where a machine's files should be, the examination ends, soon, and takes nothing unread for well."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_tree import BOARD, OUTPUTS, TREES, examine_tree

from anima_batch.doctor.machine import read_machine
from anima_batch.doctor.mounts import find_mount, parse_mounts
from anima_batch.doctor.need import Need
from anima_batch.doctor.npu import judge_npu
from anima_batch.doctor.tree import Tree

# Each file, the check that hangs on it, and whether that check is a warning or worse without it.
FILES = {
    "proc/device-tree/compatible": ("soc", True),
    "proc/device-tree/model": ("board", True),
    "proc/sys/kernel/osrelease": ("kernel", True),
    "sys/kernel/debug/rknpu/load": ("npu_load", True),
    "sys/class/devfreq/fdab0000.npu/cur_freq": ("npu_frequency", True),
    "sys/class/devfreq/fdab0000.npu/available_frequencies": ("npu_frequency", True),
    "sys/class/devfreq/fdab0000.npu/governor": ("npu_frequency", False),  # it is only shown
    "usr/lib/librknnrt.so": ("librknnrt", True),
    "proc/meminfo": ("memory", True),
    "proc/swaps": ("swap", False),  # a kernel without swap has none
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": ("cpu_governor", True),
    "sys/class/thermal/thermal_zone0/temp": ("temperature", False),  # there are six more
    "sys/class/thermal/thermal_zone0/type": ("temperature", False),
    "proc/self/mountinfo": ("file_system", True),
    "sys/class/drm/renderD129/device/uevent": ("npu_device", False),  # the other node does
}


def put_nothing(path):
    path.write_bytes(b"")


def put_noise(path):
    path.write_bytes(bytes(range(256)) * 16)


def put_huge(path):
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


def put_folder(path):
    (path / "folder").mkdir(parents=True)


def put_pipe(path):
    os.mkfifo(path)


def put_loop(path):
    path.symlink_to(path.name)


def put_link_out(path):
    path.symlink_to("/proc/self/status")


def put_link_to_device(path):
    path.symlink_to("/dev/zero")


PUTS = [put_nothing, put_noise, put_huge, put_folder, put_pipe, put_loop, put_link_out, put_link_to_device]


@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_what_it_should_be_is_never_taken_for_well(name, put, copy_tree):
    root = copy_tree("rock-5c", {name: None})
    put(root / name)
    started = time.process_time()
    checks = examine_tree(root)
    assert time.process_time() - started < 2
    check, decisive = FILES[name]
    assert len(checks) == 18
    for told in checks.values():
        assert (told.fix is None) == (told.status == "ok")
        assert len(told.found) < 1000
    if decisive and put is not put_noise:
        assert checks[check].status != "ok"


@pytest.mark.parametrize("name", [name for name, (_, decisive) in FILES.items() if decisive])
def test_a_file_that_this_user_may_not_read_is_a_warning_that_says_sudo(name, public_tree, unprivileged):
    (public_tree / name).chmod(0)
    with unprivileged():
        told = examine_tree(public_tree)[FILES[name][0]]
    assert told.status == "warn"
    assert f"/{name}: permission denied" in told.found
    assert "sudo" in (told.fix or "")


def test_a_closed_debugfs_hides_the_load_and_not_the_drivers_version(public_tree, unprivileged):
    """As it is on a board: /sys/kernel/debug is root's, and the driver's devices are the group's."""
    for node in (public_tree / "dev/dri").iterdir():
        node.chmod(0o666)
    debugfs = public_tree / "sys/kernel/debug"
    debugfs.chmod(0)
    with unprivileged():
        checks = examine_tree(public_tree)
    debugfs.chmod(0o755)
    assert checks.statuses() == {"npu_load": "warn"}
    assert checks["npu_load"].found == "/sys/kernel/debug/rknpu/load: permission denied"
    assert "sudo" in (checks["npu_load"].fix or "")
    assert checks["npu_driver"].found == "rknpu 0.9.8"


def test_a_version_that_only_root_may_read_is_a_warning_that_says_sudo(public_tree, unprivileged):
    (public_tree / "sys/module/rknpu/version").unlink()
    (public_tree / "sys/kernel/debug/rknpu/version").chmod(0)
    with unprivileged():
        told = examine_tree(public_tree)["npu_driver"]
    assert told.status == "warn"
    assert "/sys/kernel/debug/rknpu/version: permission denied" in told.found
    assert "sudo" in (told.fix or "")


def test_device_files_of_another_group_name_the_groups_to_join(public_tree, unprivileged):
    for node in (public_tree / "dev/dri").iterdir():
        node.chmod(0)
    with unprivileged():
        told = examine_tree(public_tree)["npu_device"]
    assert told.status == "fail"
    assert "usermod -aG render,video" in (told.fix or "")


def test_a_tree_whose_every_file_is_noise_is_examined(copy_tree):
    root = copy_tree("rock-5c")
    for path in root.rglob("*"):
        if path.is_file():
            path.write_bytes(os.urandom(5000))
    assert len(examine_tree(root)) == 18


def test_an_empty_tree_and_one_that_is_no_folder_are_examined(tmp_path):
    (tmp_path / "file").write_text("no folder")
    for root in (tmp_path, tmp_path / "file", tmp_path / "none"):
        checks = examine_tree(root)
        assert len(checks) == 18
        assert checks["memory"].status == "warn"
        assert checks["file_system"].status == "warn"


def test_a_hundred_thousand_mounts_are_looked_through_in_a_second_of_work():
    line = "27 1 179:3 / /m{0} rw - ext4 /dev/sda{0} rw\n"
    mounts = parse_mounts("".join(map(line.format, range(100_000))))
    started = time.process_time()
    assert find_mount(mounts, "/m99999/outputs") == mounts[-1]
    assert time.process_time() - started < 1


@settings(deadline=None)  # what else runs on the machine is no matter
@given(st.dictionaries(st.sampled_from(sorted(FILES)), st.binary(max_size=300), max_size=4))
def test_no_bytes_whatever_raise(tmp_path_factory, contents):
    root = tmp_path_factory.mktemp("any")
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    checks = examine_tree(root, BOARD)
    for told in checks.values():
        assert (told.fix is None) == (told.status == "ok")


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_mount_table_raises(text):
    find_mount(parse_mounts(text), "/home/radxa")


@settings(deadline=None)
@given(st.text(alphabet="0123456789.% -kBCore:\n", max_size=60))
def test_no_text_in_place_of_numbers_raises(text):
    machine = read_machine(Tree(TREES / "rock-5c"))
    assert len(list(judge_npu(machine, Need(OUTPUTS, "required", targets=(text,))))) == 7
