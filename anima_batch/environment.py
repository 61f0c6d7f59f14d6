"""Versions, board, kernel, boot and memory: what a picture was made with besides its model set."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from anima_batch import __version__

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


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    return int(psutil.virtual_memory().available)


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
