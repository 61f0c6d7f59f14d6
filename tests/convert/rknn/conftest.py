"""Fixtures for tests with the NPU's compiler."""

import os
from pathlib import Path

import pytest

from anima_batch.convert.rknn.toolkit import open_toolkit

VERSION = "2.3.2"  # the board's
TOOLKITS = Path(os.environ.get("TOOLKITS", Path(__file__).parents[3] / ".toolkits")).absolute()


@pytest.fixture(scope="session")
def toolkit():
    """rknn-toolkit2 2.3.2 in the folder that TOOLKITS names, `.toolkits` of the project's without it."""
    if not (TOOLKITS / VERSION).is_dir():
        command = f"anima-batch convert report --toolkit {VERSION} --toolkits {TOOLKITS}"
        reason = f"{TOOLKITS / VERSION} is missing: run `{command}`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return open_toolkit(VERSION, TOOLKITS)
