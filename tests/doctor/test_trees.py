"""Trees as four kinds of machine have them: what is well there is said to be, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from recorded_tree import BOARD, OUTPUTS, PC, TREES, examine_tree

from anima_batch.doctor import exit_code
from anima_batch.doctor.need import Need

NAMES = [
    "soc", "board", "kernel", "npu_driver", "npu_device", "npu_frequency", "npu_load",
    "backend", "librknnrt", "rknn_toolkit_lite2", "python",
    "memory", "swap", "cpu_governor", "temperature", "clock",
    "file_system", "free_space",
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.name for path in TREES.iterdir() if path.is_dir()))
def test_all_checks_are_there_in_the_same_order_and_each_that_is_not_ok_has_a_fix(name):
    for process in (BOARD, PC, None):
        checks = examine_tree(TREES / name, process)
        assert list(checks) == NAMES
        for check in checks.values():
            assert check.found
            assert check.allowed
            assert (check.fix is None) == (check.status == "ok"), check


def test_a_rock_5c_with_the_vendors_kernel_is_all_well():
    checks = examine_tree(TREES / "rock-5c")
    assert checks.statuses() == {}
    assert exit_code(checks.values()) == 0
    found = {name: check.found for name, check in checks.items()}
    assert found["soc"] == "rk3588s"
    assert found["board"] == "Radxa ROCK 5C"
    assert found["kernel"] == "6.1.84-8-rk2410"
    assert found["npu_driver"] == "rknpu 0.9.8"
    assert found["npu_device"] == "/dev/dri/card1, /dev/dri/renderD129"
    assert found["npu_frequency"] == "1000 MHz, governor performance, of 300-1000 MHz"
    assert found["npu_load"] == "0 %, 0 %, 0 %"
    assert found["librknnrt"] == "2.3.2 (429f97ae6b@2025-04-09T09:09:27)"
    assert found["rknn_toolkit_lite2"] == "2.3.2 on Python 3.11"
    assert found["memory"] == "6.4 of 7.7 GiB available"
    assert found["swap"] == "/dev/zram0 (zram) 3.9 GiB, 0 MiB used"
    assert found["temperature"] == "bigcore0-thermal 45 °C, npu-thermal 43 °C"
    assert found["clock"] == "2026-09-21 14:13:20 UTC, synchronized"
    assert found["file_system"] == "ext4 on /dev/mmcblk0p3 at /"


def test_an_orange_pi_5_recorded_without_root_lacks_its_load_and_has_an_older_patch_of_the_runtime():
    checks = examine_tree(TREES / "orange-pi-5")
    assert checks.statuses() == {"npu_load": "warn", "librknnrt": "warn"}
    assert checks["soc"].found == "rk3588"
    assert checks["npu_frequency"].found == "1000 MHz, governor rknpu_ondemand, of 300-1000 MHz"
    assert checks["librknnrt"].allowed.startswith("2.3.2")
    assert exit_code(checks.values()) == 0


def test_a_mainline_kernel_is_told_from_the_vendors_and_cannot_use_the_npu():
    checks = examine_tree(TREES / "rock-5c-mainline")
    assert checks["npu_driver"].status == "fail"
    assert "rocket" in checks["npu_driver"].found
    assert "vendor's kernel" in (checks["npu_driver"].fix or "")
    assert checks["librknnrt"].status == "fail"
    assert checks["file_system"].status == "ok"  # f2fs with barriers and fsync_mode=posix
    assert exit_code(checks.values()) == 4


def test_a_mainline_kernel_does_for_a_job_on_the_cpu():
    need = Need(OUTPUTS, npu="unused", backend="onnx", images=1, disk_bytes=1000)
    checks = examine_tree(TREES / "rock-5c-mainline", replace(BOARD, lite2=None), need)
    assert checks.statuses() == {}
    assert "rocket" in checks["npu_driver"].found


def test_a_pc_makes_pictures_on_the_cpu_and_nothing_is_wrong_with_that():
    checks = examine_tree(TREES / "x86-pc", PC)
    assert checks.statuses() == {}
    assert "no device tree" in checks["soc"].found


def test_a_pc_fails_for_a_job_that_asks_for_the_npu():
    need = Need(OUTPUTS, npu="required", backend="rknn", images=1, disk_bytes=1000)
    checks = examine_tree(TREES / "x86-pc", PC, need)
    failed = {name for name, status in checks.statuses().items() if status == "fail"}
    assert failed == {"soc", "npu_driver", "backend", "librknnrt", "rknn_toolkit_lite2"}
    assert "none for x86_64" in checks["rknn_toolkit_lite2"].found
    assert exit_code(checks.values()) == 4


def test_the_mount_of_the_outputs_folder_counts_and_no_other():
    assert examine_tree(TREES / "x86-pc", PC, outputs="/tmp/anima/outputs")["file_system"].status == "fail"
    at = "ext4 on /dev/nvme0n1p1 at /mnt/night work"
    assert examine_tree(TREES / "rock-5c", outputs="/mnt/night work/outputs")["file_system"].found == at
