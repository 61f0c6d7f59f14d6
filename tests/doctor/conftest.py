"""Copies of the recorded trees that a test may change."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recorded_tree import TREES


@pytest.fixture
def copy_tree(tmp_path: Path) -> Callable[..., Path]:
    """A function that copies a recorded tree and changes files in it; None removes one, or a whole folder."""

    def copy(name: str, changes: dict[str, bytes | None] | None = None) -> Path:
        root = tmp_path / "root"
        shutil.copytree(TREES / name, root)
        for path, content in (changes or {}).items():
            target = root / path
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            elif target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()
        return root

    return copy


@pytest.fixture
def public_tree() -> Iterator[Path]:
    """A copy of the ROCK 5C's tree that all may read: pytest's own folders are closed to other users."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        shutil.copytree(TREES / "rock-5c", Path(name) / "root")
        yield Path(name) / "root"


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Root may read what nobody else may; for a while this process is not root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def unprivileged() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """See `without_privileges`."""
    return without_privileges
