"""Fixtures for every test."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import compared_job
import pytest
from command import Workspace
from small_disk import SmallDisk, mounted_disk

# training/ and studies/ are no part of the package: they are found from the repository, after all that is installed.
sys.path.append(str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def need_tool() -> Callable[[str], str]:
    """A function that gives a system tool's path; without the tool the test skips, where CI=true it fails."""

    def find(name: str) -> str:
        if path := shutil.which(name):
            return path
        _refuse(f"needs the system tool {name}: install it (.ci/run does)")
        raise AssertionError

    return find


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path, need_tool: Callable[[str], str]) -> Iterator[SmallDisk]:
    """A file system of 8 MiB, of each kind."""
    if os.geteuid() != 0:
        _refuse("needs root, to mount a file system")
    with mounted_disk(request.param, tmp_path, need_tool("mkfs.ext4")) as disk:
        yield disk


def _refuse(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace."""
    return Workspace(tmp_path / "workspace")


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with the finished job of compared_job and its controls; it must stay as it is."""
    made = Workspace(tmp_path_factory.mktemp("compared"))
    job = made.write_job(compared_job.JOB, "compared")
    made.run("run", job, "--with-controls", "--keep-latents")
    return made
