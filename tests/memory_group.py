"""Memory control groups of this machine: a limit that processes started in them really have."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[list[str]]:
    """The words that start a command inside a group with the limit; a skip where the machine lets nobody make one."""
    group = _make_group(limit_bytes)
    try:
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        # What a command that was killed had started may outlive it for a moment.
        while (group / "cgroup.procs").read_text():
            time.sleep(0.01)
        group.rmdir()


def _make_group(limit_bytes: int) -> Path:
    for parent, limit_name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = parent / f"anima-batch-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit_name).write_text(str(limit_bytes))
        except OSError:
            group.rmdir()
            continue
        return group
    pytest.skip("needs a memory control group that can be written to: run as root outside a container")
