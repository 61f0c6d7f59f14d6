"""The environment of this machine, and of recorded trees under another root."""

import os
import platform
import re

import numpy as np
import psutil
import pytest

import anima_batch
from anima_batch.environment import DECISIVE, available_bytes, changed_environment, read_boot_id, read_environment
from anima_batch.store.records import EnvironmentRecord

COMPATIBLE = "proc/device-tree/compatible"
MODULE = "sys/module/rknpu/version"
DEBUGFS = "sys/kernel/debug/rknpu/version"


@pytest.fixture
def read_tree(tmp_path):
    """Reads the environment of a machine whose /proc and /sys hold these files."""

    def read(files, runtime=None):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return read_environment(runtime or {}, None, tmp_path)

    return read


def test_this_machines_environment_has_the_manifests_keys_and_its_own_versions():
    environment = read_environment({}, "0+1")
    assert EnvironmentRecord.model_validate(environment).model_dump() == environment
    assert environment["anima_batch"] == anima_batch.__version__
    assert environment["numpy"] == np.__version__
    assert environment["python"] == platform.python_version()
    assert environment["machine"] == os.uname().machine
    assert environment["kernel"] == os.uname().release
    assert environment["core_mask"] == "0+1"


def test_what_a_machine_does_not_have_is_none(read_tree):
    environment = read_tree({})
    assert [key for key, value in environment.items() if value is None] == [
        "rknn_toolkit_lite2",
        "librknnrt",
        "rknpu_driver",
        "soc",
        "core_mask",
        "npu_canary",
    ]


def test_a_rock_5c_is_read_from_its_device_tree_and_its_drivers_debugfs_entry(read_tree):
    environment = read_tree({COMPATIBLE: b"radxa,rock-5c\0rockchip,rk3588s\0", DEBUGFS: b"RKNPU driver: v0.9.8\n"})
    assert environment["soc"] == "rk3588s"
    assert environment["rknpu_driver"] == "0.9.8"


@pytest.mark.parametrize(
    ("files", "driver"),
    [
        ({MODULE: b"0.9.6\n"}, "0.9.6"),
        ({MODULE: b"0.9.6\n", DEBUGFS: b"RKNPU driver: v0.9.8\n"}, "0.9.8"),
        ({MODULE: b"0.9.6\n", DEBUGFS: b"\n"}, "0.9.6"),
        ({MODULE: b"v1.10.2-dirty"}, "1.10.2"),
        ({MODULE: b"\xff\xfe"}, None),
        ({MODULE: b"none"}, None),
    ],
)
def test_the_drivers_version_is_found_without_root_too(files, driver, read_tree):
    assert read_tree(files)["rknpu_driver"] == driver


@pytest.mark.parametrize(
    ("compatible", "soc"),
    [
        (b"rockchip,rk3588", "rk3588"),
        (b"xunlong,orangepi-5\0rockchip,rk3588s\0", "rk3588s"),
        (b"linux,dummy-virt\0", "dummy-virt"),
        (b"noname\0", "noname"),
        (b"\0", None),
        (b"", None),
    ],
)
def test_the_soc_is_the_last_compatible_entry_without_its_vendor(compatible, soc, read_tree):
    assert read_tree({COMPATIBLE: compatible})["soc"] == soc


def test_an_entry_that_cannot_be_read_is_none(tmp_path, read_tree):
    (tmp_path / COMPATIBLE).mkdir(parents=True)
    assert read_tree({})["soc"] is None


def test_what_the_runtime_says_of_itself_wins_and_what_it_does_not_know_hides_nothing(read_tree):
    runtime = {"rknn_toolkit_lite2": "2.3.2", "librknnrt": None, "rknpu_driver": None}
    assert read_tree({MODULE: b"0.9.6"}, runtime)["rknpu_driver"] == "0.9.6"
    environment = read_tree({}, {**runtime, "librknnrt": "2.3.0", "rknpu_driver": "0.9.8"})
    assert environment["rknn_toolkit_lite2"] == "2.3.2"
    assert environment["librknnrt"] == "2.3.0"
    assert environment["rknpu_driver"] == "0.9.8"


@pytest.mark.parametrize("key", sorted(read_environment({}, None)))
def test_a_decisive_difference_is_listed_and_another_is_not(key):
    before = read_environment({}, None)
    now = {**before, key: "other"}
    expected = [] if key in ("python", "kernel") else [f"{key}: {before[key]} -> other"]
    assert changed_environment(before, now) == expected
    assert changed_environment(before, before) == []


def test_every_decisive_difference_is_listed_in_order_also_where_a_value_came_or_went():
    before = dict.fromkeys(DECISIVE, "1")
    now = {**before, "numpy": "2", "librknnrt": None}
    del now["machine"]
    assert changed_environment(before, now) == ["numpy: 1 -> 2", "librknnrt: 1 -> None", "machine: 1 -> None"]


def test_the_boot_id_is_the_same_throughout_a_boot():
    assert re.fullmatch("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", read_boot_id())
    assert read_boot_id() == read_boot_id()


def test_available_memory_is_a_part_of_all_memory():
    assert 0 < available_bytes() <= psutil.virtual_memory().total


MIB = 1 << 20
GROUPS = {  # version -> the process's line, and its own and its parent's files
    2: ("0::/night.slice/anima.service\n", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("4:cpu,memory:/night.slice/anima.service\n", "sys/fs/cgroup/memory", "memory.limit_in_bytes",
        "memory.usage_in_bytes", "total_inactive_file"),
}  # fmt: skip


@pytest.mark.parametrize("version", GROUPS)
@pytest.mark.parametrize(
    ("own", "parent", "available"),
    [
        ((100, 40, 0), ("max", 90, 0), 60),
        ((100, 90, 25), ("max", 90, 0), 35),  # file pages that it would give up count as free
        ((100, 40, 0), (50, 45, 2), 7),  # the parent has less
        ((100, 120, 0), ("max", 120, 0), 0),
    ],
)
def test_memory_control_groups_limit_what_is_available(version, own, parent, available, tmp_path):
    line, top, limit_name, used_name, inactive_name = GROUPS[version]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:name=systemd:/elsewhere\n{line}")
    for folder, (limit, used, inactive) in {"night.slice/anima.service": own, "night.slice": parent}.items():
        group = tmp_path / top / folder
        group.mkdir(parents=True, exist_ok=True)
        (group / limit_name).write_text(f"{limit}\n" if limit == "max" else f"{limit * MIB}\n")
        (group / used_name).write_text(f"{used * MIB}\n")
        (group / "memory.stat").write_text(f"anon 1\n{inactive_name} {inactive * MIB}\nmapped 3\n")
    assert available_bytes(tmp_path) == available * MIB


def test_without_a_control_group_the_machines_memory_counts(tmp_path):
    assert available_bytes(tmp_path) > MIB
