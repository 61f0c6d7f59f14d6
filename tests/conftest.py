"""Fixtures for every test."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Workspace

# training/ and studies/ are no part of the package: they are found from the repository, after all that is installed.
sys.path.append(str(Path(__file__).parents[1]))


@pytest.fixture(scope="session")
def need_tool() -> Callable[[str], str]:
    """A function that gives a system tool's path; without the tool the test skips, where CI=true it fails."""

    def find(name: str) -> str:
        if path := shutil.which(name):
            return path
        reason = f"needs the system tool {name}: install it (.ci/run does)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    return find


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace."""
    return Workspace(tmp_path / "workspace")
