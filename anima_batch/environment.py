"""Versions, board, kernel, boot and memory: what a picture was made with besides its model set."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from anima_batch import __version__

# Of a memory control group, version 1 and 2: its limit, what it has, and in memory.stat what it could do without.
_GROUP_FILES = (
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ("memory.max", "memory.current", "inactive_file"),
)

# What may change a picture's bits: a checkpoint made under other values of these is not continued.
DECISIVE = (
    "anima_batch",
    "numpy",
    "onnxruntime",
    "rknn_toolkit_lite2",
    "librknnrt",
    "rknpu_driver",
    "soc",
    "machine",
    "core_mask",
    "npu_canary",
)

Environment = Mapping[str, str | None]


def read_environment(runtime: Environment, core_mask: str | None, root: Path = Path("/")) -> dict[str, str | None]:
    """The manifest's `environment`; `runtime` holds what the backend knows of itself. Absent things are None.

    `root` is where /proc and /sys are looked for.
    """
    return {
        "anima_batch": __version__,
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "onnxruntime": _version("onnxruntime"),
        "rknn_toolkit_lite2": None,
        "librknnrt": None,
        "rknpu_driver": _read_driver(root),
        "soc": _read_soc(root),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "core_mask": core_mask,
        "npu_canary": None,
        **{key: value for key, value in runtime.items() if value is not None},
    }


def changed_environment(before: Environment, now: Environment) -> list[str]:
    """`name: before -> now` for each decisive value that differs."""
    return [f"{key}: {before.get(key)} -> {now.get(key)}" for key in DECISIVE if before.get(key) != now.get(key)]


def read_boot_id() -> str:
    """The kernel's random id of this boot: tells a power cut from a crash, whatever the clock says."""
    return _read_text(Path("/proc/sys/kernel/random/boot_id")) or "unknown"


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that can be had without swapping, by the machine and by the control groups of this process.

    `root` is where the groups are looked for.
    """
    return min(int(psutil.virtual_memory().available), *_group_rooms(root))


def swapped_bytes() -> int:
    """What the machine has in swap."""
    sizes = dict(re.findall(r"^(Swap\w+): +(\d+) kB$", _read_text(Path("/proc/meminfo")) or "", re.MULTILINE))
    return (int(sizes.get("SwapTotal", 0)) - int(sizes.get("SwapFree", 0))) << 10


def _group_rooms(root: Path) -> Iterator[int]:
    """What each memory control group of this process still allows, with the file pages that it would give up.

    Version 2 has one line `0::/PATH` in /proc/self/cgroup, version 1 one like `4:memory:/PATH`; parents limit, too.
    """
    yield sys.maxsize
    for line in (_read_text(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        top = root / ("sys/fs/cgroup" if number == "0" else "sys/fs/cgroup/memory")
        names = _GROUP_FILES[number == "0"]
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            limit, used = (_read_text(folder / name) or "" for name in names[:2])
            if limit.isdigit() and used.isdigit():
                given_up = re.search(rf"^{names[2]} (\d+)$", _read_text(folder / "memory.stat") or "", re.MULTILINE)
                yield max(0, int(limit) - int(used) + (int(given_up[1]) if given_up else 0))
            if folder == top:
                break


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read_soc(root: Path) -> str | None:
    """`rk3588s` and the like, from the device tree's last compatible entry."""
    compatible = _read_text(root / "proc/device-tree/compatible")
    entries = [entry for entry in (compatible or "").split("\0") if entry]
    return entries[-1].rpartition(",")[2] if entries else None


def _read_driver(root: Path) -> str | None:
    """The rknpu kernel driver's version; debugfs needs root, the module's entry does not."""
    for path in ("sys/kernel/debug/rknpu/version", "sys/module/rknpu/version"):
        if found := re.search(r"\d+(\.\d+)+", _read_text(root / path) or ""):
            return found.group()
    return None


def _read_text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None
