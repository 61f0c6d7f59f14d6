"""Judges the NPU: chip, kernel driver, device file, clock and load."""

from __future__ import annotations

import re
from collections.abc import Iterator

from anima_batch.doctor.check import WITH_ROOT, Check, Status, make_check, min_status, unreadable
from anima_batch.doctor.machine import Machine
from anima_batch.doctor.need import Need
from anima_batch.doctor.tree import Reading
from anima_batch.doctor.versions import DRIVER_GOOD, DRIVER_LEAST, parse_version

CHIPS = ("rk3588", "rk3588s", "rk3588s2", "rk3582", "rk3583")  # one design; graphs for rk3588 run on each
BUSY_PERCENT = 10  # of a core before the batch has begun

_CPU_INSTEAD = 'or let the CPU do it: backend = "onnx" in the job'
_VENDOR_KERNEL = f"boot the board vendor's kernel (5.10 or 6.1, with rknpu 0.9.x); {_CPU_INSTEAD}"


def chip_of(machine: Machine) -> str | None:
    """`rk3588s` and the like: the last compatible entry without its vendor, as in every manifest."""
    entries = [entry for entry in machine.compatible.text.split("\0") if entry]
    return entries[-1].rpartition(",")[2][:100] if entries else None


def is_known_chip(machine: Machine) -> bool:
    """Whether the machine has the NPU that this project's graphs are built for."""
    return chip_of(machine) in CHIPS


def judge_npu(machine: Machine, need: Need) -> Iterator[Check]:
    """One check each for chip, board, kernel, driver, device, frequency and load."""
    yield _judge_chip(machine, need)
    yield _judge_text("board", machine.model, machine, "any board with an RK3588")
    yield _judge_text("kernel", machine.kernel, machine, "the board vendor's 5.10 or 6.1 for the NPU; any for the CPU")
    yield _judge_driver(machine, need)
    yield _judge_device(machine, need)
    yield _judge_frequency(machine, need)
    yield _judge_load(machine, need)


def _judge_chip(machine: Machine, need: Need) -> Check:
    allowed = f"{', '.join(CHIPS)} for the NPU"
    reading, chip = machine.compatible, chip_of(machine)
    if chip is None and not reading.absent:
        return unreadable("soc", reading.complaint, allowed, denied=reading.denied)
    wrong = [target for target in need.targets if chip in CHIPS and not target.lower().startswith("rk3588")]
    if wrong:
        fix = "anima-batch convert ... --target rk3588"
        return make_check("soc", need.severity, f"{chip}, the model set is for {', '.join(wrong)}", "rk3588", fix)
    if chip in CHIPS:
        return Check("soc", "ok", f"{chip}", allowed)
    found = f"{chip or 'no device tree'}: no RK3588, the pictures are made on the CPU"
    fix = f"run it on an RK3588 (in a container: -v /proc/device-tree/compatible:{reading.path}), {_CPU_INSTEAD}"
    return make_check("soc", need.severity, found, allowed, fix)


def _judge_text(name: str, reading: Reading, machine: Machine, allowed: str) -> Check:
    """A line that only has to be there; a PC has no device tree."""
    if reading.text:
        return Check(name, "ok", reading.text[:200], allowed)
    if reading.absent and name == "board" and machine.compatible.absent:
        return Check(name, "ok", "no device tree", allowed)
    return unreadable(name, reading.complaint, allowed, denied=reading.denied)


def _judge_driver(machine: Machine, need: Need) -> Check:
    allowed = f"rknpu {DRIVER_GOOD} or newer (published figures: 0.9.8); {DRIVER_LEAST} at least"
    severity = need.severity
    if not machine.vendor_driver:
        found = "none: the pictures are made on the CPU" if severity == "ok" else "none"
        if machine.mainline_driver:
            found = "mainline's rocket, which rknn-toolkit-lite2 and librknnrt cannot use"
        return make_check("npu_driver", severity, found, allowed, _VENDOR_KERNEL)
    version = next(filter(None, (parse_version(reading.text) for reading in machine.driver_versions)), None)
    if version is None:
        found = "rknpu, its version not told: " + "; ".join(reading.complaint for reading in machine.driver_versions)
        denied = any(reading.denied for reading in machine.driver_versions)
        return unreadable("npu_driver", found, allowed, denied=denied)
    status: Status = "ok"
    if version < DRIVER_GOOD:
        status = severity if version < DRIVER_LEAST else ("ok" if severity == "ok" else "warn")
    fix = "sudo apt update && sudo apt full-upgrade && sudo reboot (the driver is a part of the vendor's kernel)"
    return make_check("npu_driver", status, f"rknpu {version}", allowed, fix)


def _without_driver(name: str, need: Need, allowed: str) -> Check:
    """What goes with the driver, whose own check says how bad it is."""
    status = min_status("warn", need.severity)
    return make_check(name, status, "none, without the driver", allowed, "see npu_driver")


def _judge_device(machine: Machine, need: Need) -> Check:
    allowed = "/dev/dri/renderD* of the NPU, or /dev/rknpu, that this user may read and write"
    if not machine.vendor_driver:
        return _without_driver("npu_device", need, allowed)
    paths = ", ".join(node.path for node in machine.nodes)
    # The runtime opens either kind: a render node is enough.
    if any(node.usable for node in machine.nodes):
        return Check("npu_device", "ok", paths, allowed)
    if machine.nodes:
        fix = "sudo usermod -aG render,video $USER, then log in again"
        return make_check("npu_device", need.severity, f"{paths}: permission denied", allowed, fix)
    status = min_status("warn", need.severity)
    fix = "ls -l /dev/dri/by-path /dev/rknpu (in a container: --device /dev/dri)"
    return make_check("npu_device", status, "not told apart among /dev/dri", allowed, fix)


def _judge_frequency(machine: Machine, need: Need) -> Check:
    allowed = "the highest that is available: the vendor's rknpu_ondemand leaves it where it was"
    status = min_status("warn", need.severity)
    frequency = machine.frequency
    if frequency is None and not machine.vendor_driver:
        return _without_driver("npu_frequency", need, allowed)
    if frequency is None:
        fix = "ls /sys/class/devfreq (a driver from outside the kernel may have none)"
        return make_check("npu_frequency", status, "no /sys/class/devfreq/*.npu", allowed, fix)
    current, available = _hertz(frequency.current.text), _hertz(frequency.available.text)
    if not current:
        reading = frequency.current
        return unreadable("npu_frequency", reading.complaint, allowed, denied=reading.denied)
    found = f"{current[0] / 1e6:.0f} MHz, governor {frequency.governor.text[:40] or 'unknown'}"
    if not available:
        reading = frequency.available
        return unreadable("npu_frequency", f"{found}; {reading.complaint}", allowed, denied=reading.denied)
    found += f", of {min(available) / 1e6:.0f}-{max(available) / 1e6:.0f} MHz"
    if current[0] >= max(available):
        status = "ok"
    fix = f"echo performance | sudo tee {frequency.folder}/governor"
    return make_check("npu_frequency", status, found, allowed, fix)


def _hertz(text: str) -> list[int]:
    words = text.split()
    return [int(word) for word in words if re.fullmatch(r"[0-9]{1,12}", word) and int(word) > 0]


def _judge_load(machine: Machine, need: Need) -> Check:
    allowed = f"each core at most {BUSY_PERCENT} % before the batch begins"
    if not machine.vendor_driver:
        return _without_driver("npu_load", need, allowed)
    readings = [reading for reading in machine.loads if reading.text]
    if not readings:
        # The one in /proc is only there where the kernel was built so: what matters is debugfs.
        reading = next((reading for reading in machine.loads if reading.denied), machine.loads[0])
        fix = WITH_ROOT if reading.denied else "sudo mount -t debugfs none /sys/kernel/debug"
        return Check("npu_load", "warn", reading.complaint, allowed, fix)
    percents = [int(number) for number in re.findall(r"([0-9]{1,6})\s*%", readings[0].text)]
    if not percents:
        return unreadable("npu_load", readings[0].complaint, allowed, denied=False)
    found = ", ".join(f"{percent} %" for percent in percents)
    busy = max(percents) > BUSY_PERCENT and need.severity != "ok"
    return Check("npu_load", "warn" if busy else "ok", found, allowed, "sudo fuser -v /dev/dri/*" if busy else None)
