"""One thing wrong at a time on a board that is well: its own check says so, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from recorded_tree import BOARD, OUTPUTS, examine_tree

from anima_batch.doctor import exit_code
from anima_batch.doctor.need import Need
from anima_batch.doctor.process import Space

MOUNTS = "proc/self/mountinfo"
ELF = b"\x7fELF" + bytes(14) + (183).to_bytes(2, "little") + bytes(44)
RUNTIME = "usr/lib/librknnrt.so"
DEBUGFS = "sys/kernel/debug/rknpu/version"
MODULE = "sys/module/rknpu/version"
NPU = "sys/class/devfreq/fdab0000.npu"


def mounted(kind: str, options: str, source: str = "/dev/mmcblk0p3") -> dict[str, bytes | None]:
    return {MOUNTS: f"27 1 179:3 / / rw,relatime shared:1 - {kind} {source} {options}\n".encode()}


def library(version: str) -> dict[str, bytes | None]:
    return {RUNTIME: ELF + f"librknnrt version: {version} (c949ad889d@2024-11-07T11:35:33)\0".encode()}


def driver(version: str) -> dict[str, bytes | None]:
    return {DEBUGFS: f"RKNPU driver: v{version}\n".encode(), MODULE: f"{version}\n".encode()}


FAULTS = {
    "another chip": (
        {"proc/device-tree/compatible": b"radxa,rock-4d\0rockchip,rk3576\0"}, "soc", "ok", "rk3576: no RK3588", None,
    ),
    "no driver": ({"sys/bus/platform/drivers/RKNPU": None, "sys/module": None}, "npu_driver", "fail", "none", "vendor"),
    "driver of 2022": (driver("0.8.2"), "npu_driver", "fail", "rknpu 0.8.2", "full-upgrade"),
    "driver that fails to submit": (driver("0.9.3"), "npu_driver", "warn", "rknpu 0.9.3", "full-upgrade"),
    "driver that tells no version": (
        {DEBUGFS: b"\n", MODULE: None}, "npu_driver", "warn", "/sys/kernel/debug/rknpu/version: empty", "by hand",
    ),
    "device file missing": ({"dev": None}, "npu_device", "warn", "not told apart", "by-path"),
    "slow clock": ({f"{NPU}/cur_freq": b"300000000\n"}, "npu_frequency", "warn", "300 MHz", f"tee /{NPU}/governor"),
    "clock without a number": ({f"{NPU}/cur_freq": b"fast\n"}, "npu_frequency", "warn", "cur_freq", "by hand"),
    "no frequencies": ({f"{NPU}/available_frequencies": None}, "npu_frequency", "warn", "no such file", "by hand"),
    "npu in use": (
        {"sys/kernel/debug/rknpu/load": b"NPU load:  Core0: 98%, Core1:  0%, Core2:  0%,\n"},
        "npu_load", "warn", "98 %, 0 %, 0 %", "fuser",
    ),
    "runtime of the toolkit's minor version": (library("2.3.0"), "librknnrt", "warn", "2.3.0", "v2.3.2/"),
    "runtime of an older minor version": (library("2.2.0"), "librknnrt", "fail", "2.2.0", "v2.3.2/"),
    "runtime that refuses format 6": (library("1.4.0"), "librknnrt", "fail", "1.4.0", "v2.3.2/"),
    "newer runtime": (library("2.5.0"), "librknnrt", "warn", "2.5.0", "v2.3.2/"),
    "no runtime": ({RUNTIME: None}, "librknnrt", "fail", "no /usr/lib/librknnrt.so", "curl"),
    "runtime where lite2 does not look": (
        {RUNTIME: None, "usr/lib/aarch64-linux-gnu/librknnrt.so": ELF}, "librknnrt", "fail",
        "/usr/lib/aarch64-linux-gnu/librknnrt.so, but", "sudo ln -s /usr/lib/aarch64-linux-gnu/librknnrt.so /usr/lib/",
    ),
    "page of a web server as runtime": ({RUNTIME: b"<html>404</html>"}, "librknnrt", "fail", "not a shared", "curl"),
    "runtime for 32 bits": (
        {RUNTIME: b"\x7fELF" + bytes(14) + (40).to_bytes(2, "little")}, "librknnrt", "fail", "another processor",
        "curl",
    ),
    "runtime without a version": ({RUNTIME: ELF}, "librknnrt", "fail", "no version", "curl"),
    "memory short": (
        {"proc/meminfo": b"MemTotal: 4000000 kB\nMemAvailable: 1000000 kB\n"}, "memory", "warn", "1.0 of 3.8", "ps aux",
    ),
    "memory gone": (
        {"proc/meminfo": b"MemTotal: 4000000 kB\nMemAvailable: 100000 kB\n"}, "memory", "fail", "0.1 of", "ps aux",
    ),
    "swap on the card": (
        {"proc/swaps": b"Filename Type Size Used Priority\n/dev/mmcblk0p4 partition 1000000 0 -2\n"},
        "swap", "warn", "/dev/mmcblk0p4 (partition) 1.0 GiB", "sudo swapoff /dev/mmcblk0p4",
    ),
    "swap in use": (
        {"proc/swaps": b"Filename Type Size Used Priority\n/swapfile file 1000000 900000 -2\n"},
        "swap", "warn", "879 MiB used", "sudo swapoff /swapfile",
    ),
    "powersave": (
        {"sys/devices/system/cpu/cpufreq/policy4/scaling_governor": b"powersave\n"},
        "cpu_governor", "warn", "performance, powersave", "scaling_governor",
    ),
    "hot": ({"sys/class/thermal/thermal_zone6/temp": b"91000\n"}, "temperature", "warn", "npu-thermal 91 °C", "fan"),
    "burning": ({"sys/class/thermal/thermal_zone6/temp": b"112000\n"}, "temperature", "fail", "112 °C", "fan"),
    "no barriers": (
        mounted("ext4", "rw,nobarrier"), "file_system", "fail", "nobarrier", "sudo mount -o remount,barrier=1 /",
    ),
    "no barriers, as of old": (mounted("ext3", "rw,barrier=0"), "file_system", "fail", "barrier=0", "remount"),
    "btrfs without barriers": (mounted("btrfs", "rw,nobarrier"), "file_system", "fail", "nobarrier", ",barrier /"),
    "f2fs whose fsync does nothing": (
        mounted("f2fs", "rw,barrier,fsync_mode=nobarrier"), "file_system", "fail", "fsync_mode=nobarrier",
        "fsync_mode=posix",
    ),
    "f2fs without checkpoints": (
        mounted("f2fs", "rw,checkpoint=disable:0%"), "file_system", "fail", "checkpoint=disable", "checkpoint=enable",
    ),
    "writeback": (mounted("ext4", "rw,data=writeback"), "file_system", "warn", "data=writeback", "fstab"),
    "both": (mounted("ext4", "rw,nobarrier,data=writeback"), "file_system", "fail", "old blocks", "remount,barrier=1"),
    "read-only": (mounted("ext4", "ro"), "file_system", "fail", "read-only", "remount,rw"),
    "tmpfs": (mounted("tmpfs", "rw", "tmpfs"), "file_system", "fail", "in memory", "--workspace"),
    "ext4 in zram": (mounted("ext4", "rw", "/dev/zram1"), "file_system", "fail", "in memory", "--workspace"),
    "nfs": (mounted("nfs4", "rw,vers=4.2", "nas:/night"), "file_system", "warn", "network", "--workspace"),
    "cifs": (mounted("cifs", "rw,vers=3.1.1", "//nas/night"), "file_system", "warn", "network", "--workspace"),
    "container": (
        mounted("overlay", "rw,lowerdir=/l,upperdir=/u,workdir=/w", "overlay"), "file_system", "warn", "container",
        "-v",
    ),
    "exfat": (mounted("exfat", "rw"), "file_system", "warn", "no journal", "--workspace"),
    "unheard of": (mounted("newfs", "rw"), "file_system", "warn", "never tried", "--workspace"),
    "no mount table": ({MOUNTS: None}, "file_system", "warn", "no such file", "by hand"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_on_a_board_is_said_with_its_fix(name, copy_tree):
    changes, check, status, found, fix = FAULTS[name]
    checks = examine_tree(copy_tree("rock-5c", changes))
    told = checks[check]
    assert (told.status, told.name) == (status, check)
    assert found in told.found
    assert fix is None or fix in (told.fix or "")
    others = {other for other in checks.statuses() if other != check}
    follows = {"npu_device", "npu_frequency", "npu_load"} if name == "no driver" else set()
    follows |= {"rknn_toolkit_lite2"} if check == "librknnrt" else set()  # it must be of the runtime's minor version
    assert others <= follows
    failed = any(entry.status == "fail" for entry in checks.values())
    assert exit_code(checks.values()) == ((5 if check == "file_system" else 4) if failed else 0)


def test_an_overlay_whose_changes_are_in_memory_keeps_nothing(copy_tree):
    root = copy_tree("rock-5c", {
        MOUNTS: b"27 1 0:30 / / rw - overlay overlayroot rw,lowerdir=/media/root-ro,upperdir=/media/root-rw/overlay\n"
        b"28 27 0:31 / /media/root-rw rw - tmpfs tmpfs-root rw\n"
    })  # fmt: skip
    told = examine_tree(root)["file_system"]
    assert told.status == "fail"
    assert "in memory" in told.found


def test_a_container_without_the_device_tree_is_told_what_to_pass(copy_tree):
    told = examine_tree(copy_tree("rock-5c", {"proc/device-tree": None}))["soc"]
    assert told.status == "warn"
    assert "-v /proc/device-tree/compatible:/proc/device-tree/compatible" in (told.fix or "")


def test_what_is_there_and_not_understood_is_shown(copy_tree):
    root = copy_tree("rock-5c", {"proc/meminfo": b"MemTotal: many\n", DEBUGFS: b"RKNPU driver: new\n", MODULE: None})
    checks = examine_tree(root)
    assert checks["memory"].found == "/proc/meminfo: not understood: MemTotal: many"
    assert "/sys/kernel/debug/rknpu/version: not understood: RKNPU driver: new" in checks["npu_driver"].found


def test_the_version_in_the_module_does_where_debugfs_has_none(copy_tree):
    root = copy_tree("rock-5c", {DEBUGFS: None, MODULE: b"0.9.6\n"})
    told = examine_tree(root)["npu_driver"]
    assert (told.status, told.found) == ("ok", "rknpu 0.9.6")


def test_a_driver_without_drm_is_reached_by_its_own_device(copy_tree):
    root = copy_tree("rock-5c", {"sys/class/drm": None, "dev/rknpu": b""})
    assert examine_tree(root)["npu_device"].found == "/dev/rknpu"


def test_a_load_in_proc_does_where_debugfs_has_none(copy_tree):
    root = copy_tree("rock-5c", {"sys/kernel": None, "proc/rknpu/load": b"NPU load:  3%\n"})
    assert examine_tree(root)["npu_load"].found == "3 %"


PROCESSES = {
    "1970": ({"seconds": 12.0}, "clock", "fail", "1970-01-01 00:00:12", "timedatectl"),
    "before 1970": ({"seconds": -1e9}, "clock", "fail", "1938-", "timedatectl"),
    "the last day of 2023": ({"seconds": 1_704_067_199.0}, "clock", "fail", "2023-12-31", "timedatectl"),
    "the end of time": ({"seconds": 1e300}, "clock", "fail", "since 1970", "timedatectl"),
    "python 3.13": ({"python": (3, 13)}, "python", "fail", "3.13 on aarch64", "3.12"),
    "python 3.9": ({"python": (3, 9)}, "python", "fail", "3.9", "3.12"),
    "no lite2": (
        {"lite2": None},
        "rknn_toolkit_lite2",
        "fail",
        "not installed",
        "pip install rknn-toolkit-lite2==2.3.2",
    ),
    "lite2 beside a newer runtime": ({"lite2": "2.2.0"}, "rknn_toolkit_lite2", "warn", "beside librknnrt 2.3.2", "pip"),
    "lite2 without a version": ({"lite2": "unknown"}, "rknn_toolkit_lite2", "warn", "unknown", "pip"),
    "full disk": ({"space": Space(0, 1000)}, "free_space", "fail", "0 MB free", "--limit"),
    "nearly full disk": ({"space": Space(999_000_000, 1000)}, "free_space", "warn", "999 MB free", "--limit"),
    "a disk that does not answer": ({"space": None}, "free_space", "warn", "cannot be asked", "by hand"),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_what_is_wrong_with_the_process_or_its_disk_is_said(name, copy_tree):
    changes, check, status, found, fix = PROCESSES[name]
    checks = examine_tree(copy_tree("rock-5c"), replace(BOARD, **changes))
    told = checks[check]
    assert told.status == status
    assert found in told.found
    assert fix in (told.fix or "")
    assert set(checks.statuses()) <= {check, "librknnrt"}  # what lite2 does not match


def test_the_first_second_of_2024_is_a_clock_that_was_set(copy_tree):
    told = examine_tree(copy_tree("rock-5c"), replace(BOARD, seconds=1_704_067_200.0))["clock"]
    assert told.status == "ok"


@pytest.mark.parametrize(("asked", "text"), [(False, ", not synchronized"), (None, "not known whether")])
def test_a_clock_that_no_service_sets_is_a_warning_unless_the_marker_is_there(asked, text, copy_tree):
    process = replace(BOARD, synchronized=asked)
    root = copy_tree("rock-5c")
    assert examine_tree(root, process)["clock"].status == "ok"
    (root / "run/systemd/timesync/synchronized").unlink()
    told = examine_tree(root, process)["clock"]
    assert told.status == "warn"
    assert text in told.found


JOB = Need(OUTPUTS, "required", "rknn", graphs=84, toolkits=("2.3.2",), targets=("rk3588",), images=100,
           disk_bytes=10_000_000_000, held_bytes=1_000_000_000)  # fmt: skip


@pytest.mark.parametrize(
    ("space", "status"),
    [
        (Space(9_000_000_000, None), "ok"),  # what is held on the disk counts as room
        (Space(8_999_999_999, None), "fail"),
        (Space(50_000_000_000, 400), "ok"),
        (Space(50_000_000_000, 399), "fail"),
    ],
)
def test_the_room_is_that_which_the_job_still_takes(space, status, copy_tree):
    checks = examine_tree(copy_tree("rock-5c"), replace(BOARD, space=space), JOB)
    assert checks["free_space"].status == status
    assert checks["free_space"].allowed.startswith("10000 MB for 100 images")
    assert exit_code(checks.values()) == (5 if status == "fail" else 0)


@pytest.mark.parametrize(
    ("changes", "check", "status", "found"),
    [
        ({"toolkits": ("2.3.2",)}, "backend", "ok", "rknn: 84 .rknn graphs, toolkit 2.3.2"),
        ({"toolkits": ("2.3.0", "2.3.2")}, "backend", "warn", "toolkit 2.3.0, 2.3.2"),
        ({"toolkits": ()}, "backend", "warn", "toolkit unknown"),
        ({"graphs": 0, "toolkits": ()}, "backend", "fail", "no .rknn graphs"),
        ({"npu": "unused", "backend": "onnx"}, "backend", "ok", "(84 .rknn graphs, toolkit 2.3.2 left aside)"),
        ({"npu": "wanted", "backend": "auto"}, "backend", "warn", "onnx for want of lite2"),
        ({"toolkits": ("2.5.0",)}, "librknnrt", "fail", "2.3.2"),
        ({"toolkits": ("2.3.0",)}, "librknnrt", "warn", "2.3.2"),
        ({"toolkits": ("2.5.0",)}, "rknn_toolkit_lite2", "warn", "beside toolkit 2.5.0"),
        ({"toolkits": ("no number",)}, "librknnrt", "ok", "2.3.2"),
        ({"targets": ("rk3566",)}, "soc", "fail", "the model set is for rk3566"),
        ({"targets": ("RK3588",)}, "soc", "ok", "rk3588s"),
    ],
)
def test_the_model_set_is_compared_with_the_board(changes, check, status, found, copy_tree):
    told = examine_tree(copy_tree("rock-5c"), BOARD, replace(JOB, **changes))[check]
    assert told.status == status
    assert found in told.found


def test_versions_that_come_without_a_job_suggest_the_runtime_of_lite2(copy_tree):
    checks = examine_tree(copy_tree("rock-5c", {RUNTIME: None}), replace(BOARD, lite2="2.5.0"))
    assert "/raw/v2.5.0/" in (checks["librknnrt"].fix or "")
