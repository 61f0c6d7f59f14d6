"""No file, whatever is in it, brings a traceback, changes another file or reaches the terminal raw."""

from dataclasses import replace

import pytest
from fuzz.targets import TARGETS, feed
from fuzz.world import make_world
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture(scope="module")
def inputs(world):
    """The hostile variants of each kind of file."""
    return {name: target.inputs(world) for name, target in TARGETS.items()}


@pytest.mark.parametrize("name", TARGETS)
def test_the_valid_file_is_taken(world, name):
    path = TARGETS[name].path(world)
    if path.exists():
        assert feed(TARGETS[name], world, path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_hostile_file_is_taken_or_refused_in_one_line(world, inputs, name, data):
    feed(TARGETS[name], world, data.draw(inputs[name]))


def raise_a_foreign_error(world):
    raise KeyError("generation")


def write_a_file(world):
    (world.folder / "new").write_text("")


def show_a_control_character(world):
    print("\x1b[2J")


@pytest.mark.parametrize(
    ("read", "caught"),
    [(raise_a_foreign_error, KeyError), (write_a_file, AssertionError), (show_a_control_character, AssertionError)],
)
def test_a_reader_that_does_wrong_is_caught(world, read, caught):
    """Without this the tests above prove nothing."""
    with pytest.raises(caught):
        feed(replace(TARGETS["job"], read=read), world, b"")
    (world.folder / "new").unlink(missing_ok=True)
