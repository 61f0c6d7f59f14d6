"""Judges the versions that must go together: model set, librknnrt.so, rknn-toolkit-lite2, Python."""

from __future__ import annotations

import re
from collections.abc import Iterator

from anima_batch.doctor.check import Check, Status, make_check, min_status, unreadable
from anima_batch.doctor.machine import RUNTIME, Machine
from anima_batch.doctor.need import Need
from anima_batch.doctor.process import Process
from anima_batch.doctor.versions import RUNTIME_LEAST, Version, format_version, parse_version

PYTHON_LEAST, PYTHON_MOST = (3, 10), (3, 12)  # the newest for which lite2 has wheels
PUBLISHED = Version(2, 3, 2)  # the toolkit of the published figures

_ELF, _AARCH64 = b"\x7fELF", 183
_RUNTIME_VERSION = re.compile(rb"librknnrt version: ([0-9.]{5,20}[^\0\n)]{0,80}\)?)")
_RUNTIME_URL = "https://github.com/airockchip/rknn-toolkit2/raw/v{}/rknpu2/runtime/Linux/librknn_api/aarch64/"


def judge_software(machine: Machine, process: Process | None, need: Need) -> Iterator[Check]:
    """One check each for the backend, the runtime, lite2 and Python; without a process the last two are not known."""
    yield _judge_backend(process, need)
    yield _judge_runtime(machine, process, need)
    if process is None:
        for name in ("rknn_toolkit_lite2", "python"):
            yield not_recorded(name)
        return
    yield _judge_lite2(machine, process, need)
    yield _judge_python(process)


def not_recorded(name: str) -> Check:
    """What no copied tree tells."""
    return Check(name, "warn", "a copied tree does not tell", "known", "run anima-batch doctor on the machine itself")


def _judge_backend(process: Process | None, need: Need) -> Check:
    allowed = "rknn (NPU) or onnx (CPU)"
    if need.images is None:
        return Check("backend", "ok", "no job named: the job and its model set decide", allowed)
    graphs = f"{need.graphs} .rknn graphs, toolkit {', '.join(need.toolkits) or 'unknown'}"
    if need.npu == "unused":
        found = f'onnx, as "{need.backend}" gives it' + (f" ({graphs} left aside)" if need.graphs else "")
        return Check("backend", "ok", found, allowed)
    if not need.graphs:
        return Check(
            "backend", "fail", "rknn, and the model set has no .rknn graphs", allowed, "anima-batch convert --help"
        )
    if len(need.toolkits) != 1:
        fix = "anima-batch convert ... --target rk3588 --toolkit 2.3.2"
        return Check("backend", "warn", graphs, "one toolkit for all graphs, named in model_set.json", fix)
    if need.npu == "wanted" and process is not None:
        return Check("backend", "warn", f"onnx for want of lite2, beside {graphs}", allowed, _install(need))
    return Check("backend", "ok", f"rknn: {graphs}", allowed)


def _install(need: Need) -> str:
    return f"pip install rknn-toolkit-lite2=={_wanted(need) or PUBLISHED}"


def _wanted(need: Need) -> Version | None:
    """The newest toolkit that made a graph of the set."""
    return max(filter(None, map(parse_version, need.toolkits)), default=None)


def _judge_runtime(machine: Machine, process: Process | None, need: Need) -> Check:
    lite2 = parse_version(process.lite2) if process and process.lite2 else None
    wanted = _wanted(need) or lite2
    allowed = f"{wanted}, as the toolkit" if wanted else f"that of the model set's toolkit, {RUNTIME_LEAST} or newer"
    fix = f"sudo curl -fLo {RUNTIME} {_RUNTIME_URL.format(wanted or PUBLISHED)}librknnrt.so"
    reading = machine.runtime
    if reading.data is None:
        return _missing_runtime(machine, need, allowed, fix)
    fault, version = _look_into(reading.data)
    status: Status = need.severity
    if fault:
        return make_check("librknnrt", status, f"{RUNTIME}: {fault}", allowed, fix)
    number = parse_version(version)
    if number is None:
        return make_check("librknnrt", status, f"{RUNTIME}: no version in it", allowed, fix)
    status = min_status(need.severity, _compare(number, wanted))
    return make_check("librknnrt", status, version, allowed, fix)


def _missing_runtime(machine: Machine, need: Need, allowed: str, fix: str) -> Check:
    reading = machine.runtime
    if not reading.absent:
        if need.severity == "ok":
            return Check("librknnrt", "ok", reading.complaint, allowed)
        return unreadable("librknnrt", reading.complaint, allowed, denied=reading.denied)
    if need.severity == "ok":
        return Check("librknnrt", "ok", "none, and none is needed", allowed)
    if machine.runtime_elsewhere:
        found = f"{machine.runtime_elsewhere}, but lite2 looks for {RUNTIME}"
        return make_check(
            "librknnrt", need.severity, found, allowed, f"sudo ln -s {machine.runtime_elsewhere} {RUNTIME}"
        )
    return make_check("librknnrt", need.severity, f"no {RUNTIME}", allowed, fix)


def _look_into(data: bytes) -> tuple[str, str]:
    """(fault, version text) of the library's bytes."""
    if data[:4] != _ELF:
        return "not a shared library", ""
    if int.from_bytes(data[18:20], "little") != _AARCH64:
        return "built for another processor than aarch64", ""
    match = _RUNTIME_VERSION.search(data)
    return "", match[1].decode("ascii", "replace").strip() if match else ""


def _compare(runtime: Version, toolkit: Version | None) -> Status:
    """Rockchip's table lets any 2.x runtime load graphs of 2.0 and 2.1 and says nothing of later ones.

    A runtime of an older minor version is therefore refused. One of an older patch ran 2.3.2 graphs in the published
    figures; newer ones mostly do, but a graph of 2.3.0 is reported to crash 2.3.2 (taOS 42).
    """
    if runtime < RUNTIME_LEAST or (toolkit and runtime[:2] < toolkit[:2]):
        return "fail"
    return "ok" if toolkit is None or runtime == toolkit else "warn"


def _judge_lite2(machine: Machine, process: Process, need: Need) -> Check:
    wanted = _wanted(need)
    python = f"{PYTHON_LEAST[0]}.{PYTHON_LEAST[1]}-{PYTHON_MOST[0]}.{PYTHON_MOST[1]}"
    allowed = f"{wanted or '2.3.0 or newer'}, on aarch64 with Python {python}"
    if process.lite2 is None:
        on_board = process.machine == "aarch64"
        found = "not installed" if on_board else f"not installed: there is none for {process.machine}"
        if need.severity == "ok":
            return Check("rknn_toolkit_lite2", "ok", f"{found}, and not needed", allowed)
        fix = _install(need) if on_board else 'run it on the board, or take backend = "onnx"'
        return make_check("rknn_toolkit_lite2", need.severity, found, allowed, fix)
    found = f"{process.lite2} on Python {process.python[0]}.{process.python[1]}"
    version = parse_version(process.lite2)
    match = _RUNTIME_VERSION.search(machine.runtime.data or b"")
    partner = wanted or (parse_version(match[1].decode("ascii", "replace")) if match else None)
    if version is None or not partner or version[:2] != partner[:2]:
        found += f", beside {'toolkit' if wanted else 'librknnrt'} {format_version(partner)}"
        status = min_status(need.severity, "warn")
        return make_check("rknn_toolkit_lite2", status, found, allowed, _install(need))
    return Check("rknn_toolkit_lite2", "ok", found, allowed)


def _judge_python(process: Process) -> Check:
    allowed = "3.10, 3.11 or 3.12"
    found = f"{process.python[0]}.{process.python[1]} on {process.machine}"
    if PYTHON_LEAST <= process.python <= PYTHON_MOST:
        return Check("python", "ok", found, allowed)
    return Check("python", "fail", found, allowed, "uv venv --python 3.12 .venv, then install anima-batch there")
