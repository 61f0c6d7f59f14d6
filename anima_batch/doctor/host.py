"""Judges what a night needs besides the NPU: memory, swap, CPU governor, temperature, clock."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from anima_batch.doctor.check import Check, Status, make_check, min_status, unreadable
from anima_batch.doctor.machine import Machine, Zone
from anima_batch.doctor.need import Need
from anima_batch.doctor.process import Process
from anima_batch.doctor.software import not_recorded

MEMORY_GOOD = 1536 << 20  # under which the published residency test broke off; one graph resident took 365 MiB
MEMORY_LEAST = 512 << 20  # under which not even the host's share of a step fits
SWAP_USED = 256 << 20  # on a disk: what is fetched back from there stalls steps

GOVERNORS = ("performance", "schedutil", "ondemand", "interactive")  # those that go up with the load, or stay up
WARM, HOT = 75.0, 105.0  # degrees: at 85 the vendor's driver holds the NPU at 800 MHz, at 115 the board goes off

YEAR_LEAST = 2024  # no release of this program is older


def judge_host(machine: Machine, process: Process | None, need: Need) -> Iterator[Check]:
    """One check each; without a process the clock is not known."""
    yield _judge_memory(machine)
    yield _judge_swap(machine)
    yield _judge_governor(machine)
    yield _judge_temperature(machine, need)
    yield not_recorded("clock") if process is None else _judge_clock(machine, process)


def _judge_memory(machine: Machine) -> Check:
    allowed = f"{MEMORY_GOOD / 2**30:.1f} GiB available"
    sizes = {key: int(value) << 10 for key, value in re.findall(r"(\w+):\s*([0-9]{1,15}) kB", machine.memory.text)}
    if "MemAvailable" not in sizes or "MemTotal" not in sizes:
        reading = machine.memory
        return unreadable("memory", reading.complaint, allowed, denied=reading.denied)
    available = sizes["MemAvailable"]
    found = f"{available / 2**30:.1f} of {sizes['MemTotal'] / 2**30:.1f} GiB available"
    status: Status = "ok" if available >= MEMORY_GOOD else "warn" if available >= MEMORY_LEAST else "fail"
    return make_check("memory", status, found, allowed, "stop other programs: ps aux --sort=-rss")


def _judge_swap(machine: Machine) -> Check:
    allowed = "none, zram, or a disk's that is hardly used; not on an SD card or eMMC"
    reading = machine.swaps
    if reading.data is None:
        if reading.absent:  # a kernel without swap has no such file
            return Check("swap", "ok", "none", allowed)
        return unreadable("swap", reading.complaint, allowed, denied=reading.denied)
    rows = [row for line in reading.text.splitlines()[1:] if (row := _parse_swap(line))]
    found = ", ".join(
        f"{name} ({kind}) {size / 2**30:.1f} GiB, {used / 2**20:.0f} MiB used" for name, kind, size, used in rows
    )
    slow = [row for row in rows if row[1] != "zram" and (row[0].startswith("/dev/mmcblk") or row[3] > SWAP_USED)]
    fix = f"sudo swapoff {slow[0][0]} && sudo apt install zram-tools" if slow else None
    return Check("swap", "warn" if slow else "ok", found or "none", allowed, fix)


def _parse_swap(line: str) -> tuple[str, str, int, int] | None:
    """(name, kind, bytes, bytes used) of a line of /proc/swaps; zram is compressed memory and told apart."""
    fields = line.split()
    if len(fields) < 4 or not all(re.fullmatch("[0-9]{1,15}", field) for field in fields[2:4]):
        return None
    kind = "zram" if fields[0].startswith("/dev/zram") else fields[1]
    return fields[0], kind, int(fields[2]) << 10, int(fields[3]) << 10


def _judge_governor(machine: Machine) -> Check:
    allowed = f"performance; {', '.join(GOVERNORS[1:])} follow the load"
    if not machine.governors:
        return Check("cpu_governor", "ok", "none: no cpufreq, the frequency is not the system's", allowed)
    silent = [reading for reading in machine.governors if not reading.text]
    if silent:
        return unreadable("cpu_governor", silent[0].complaint, allowed, denied=silent[0].denied)
    names = sorted({reading.text[:40] for reading in machine.governors})
    slow = any(name not in GOVERNORS for name in names)
    fix = "echo performance | sudo tee /sys/devices/system/cpu/cpufreq/policy*/scaling_governor" if slow else None
    return Check("cpu_governor", "warn" if slow else "ok", ", ".join(names), allowed, fix)


def _judge_temperature(machine: Machine, need: Need) -> Check:
    allowed = f"under {WARM:.0f} °C before the batch begins: from 85 on the NPU is slowed down"
    if not machine.zones:
        status = min_status("warn", need.severity)
        return make_check("temperature", status, "no sensor", allowed, "ls /sys/class/thermal")
    degrees = _degrees(machine.zones)
    if not degrees:
        reading = machine.zones[0].temperature
        return unreadable("temperature", reading.complaint, allowed, denied=reading.denied)
    hottest = max(degrees, key=lambda name: degrees[name])
    names = sorted({hottest, *(name for name in degrees if name.startswith("npu"))})
    found = ", ".join(f"{name} {degrees[name]:.0f} °C" for name in names)
    status = "ok" if degrees[hottest] < WARM else "warn" if degrees[hottest] < HOT else "fail"
    return make_check("temperature", status, found, allowed, "let it cool down; give it a heat sink with a fan")


def _degrees(zones: Sequence[Zone]) -> dict[str, float]:
    """Degrees Celsius by name, of the sensors that give any; one that is switched off gives an absurd number."""
    found: dict[str, float] = {}
    for zone in zones:
        text = zone.temperature.text
        degrees = int(text) / 1000 if re.fullmatch("-?[0-9]{1,7}", text) else None
        if degrees is not None and -50 <= degrees <= 150:
            name = zone.kind.text[:40] or zone.kind.path
            found[name] = max(degrees, found.get(name, degrees))
    return found


def _judge_clock(machine: Machine, process: Process) -> Check:
    allowed = f"{YEAR_LEAST} or later, set by a time service: manifests record it (nothing is decided by it)"
    fix = "sudo timedatectl set-ntp true (or: sudo date -s 'YYYY-MM-DD hh:mm')"
    try:
        found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(process.seconds))
    except (OverflowError, ValueError, OSError):
        return Check("clock", "fail", f"{process.seconds:.0f} s since 1970", allowed, fix)
    if time.gmtime(process.seconds).tm_year < YEAR_LEAST:
        return Check("clock", "fail", found, allowed, fix)
    if machine.synchronized or process.synchronized:
        return Check("clock", "ok", f"{found}, synchronized", allowed)
    known = "not synchronized" if process.synchronized is False else "not known whether synchronized"
    return Check("clock", "warn", f"{found}, {known}", allowed, fix)
