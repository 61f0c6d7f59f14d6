"""Fixtures for tests of the conversion."""

import pytest
from golden_set import make_golden_set


@pytest.fixture(scope="session")
def golden_set(tmp_path_factory):
    """A model set of the golden weights, all float32."""
    return make_golden_set(tmp_path_factory.mktemp("golden"))
