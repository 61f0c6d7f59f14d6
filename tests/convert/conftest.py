"""Fixtures for tests of the conversion."""

import os
from pathlib import Path

import pytest
from golden_set import make_golden_set

from anima_batch.convert.toolkit import open_toolkit

VERSION = "2.3.2"  # the board's
TOOLKITS = Path(os.environ.get("TOOLKITS", Path(__file__).parents[2] / ".toolkits")).absolute()


@pytest.fixture(scope="session")
def golden_set(tmp_path_factory):
    """A model set of the golden weights, all float32."""
    return make_golden_set(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def toolkit():
    """rknn-toolkit2 2.3.2 in the folder that TOOLKITS names, `.toolkits` of the project's without it."""
    if not (TOOLKITS / VERSION).is_dir():
        command = f"anima-batch convert report --toolkit {VERSION} --toolkits {TOOLKITS}"
        reason = f"{TOOLKITS / VERSION} is missing: run `{command}`"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    return open_toolkit(VERSION, TOOLKITS)
