"""A small share of the model of crash states; `python -m crash` does the rest."""

import random

import pytest

from crash.model import look_at, possible_states
from crash.report import Scale, Tally
from crash.scenes import Studio

STATES_A_CALL = 8


@pytest.fixture(scope="module")
def studio(tmp_path_factory, need_tool):
    need_tool("strace")
    return Studio(Scale(0.01, 1, tmp_path_factory.mktemp("crash")))


def count_bad(scene, order):
    tally = Tally()
    for state in possible_states([scene], order, STATES_A_CALL, random.Random(1)):
        tally.add(look_at(state), state.where)
    return tally


def test_every_state_of_the_real_writer_keeps_the_promises(studio):
    scene = studio.record("real", "short")
    for order in ("ordered", "weak"):
        tally = count_bad(scene, order)
        assert tally.states > 200
        assert tally.examples == []


@pytest.mark.parametrize("name", ["renamed, folder not synced", "picture not synced"])
def test_a_broken_writer_is_found_out(studio, name):
    scene = studio.record_broken(name)
    assert count_bad(scene, "weak").bad > 0


def test_a_job_goes_on_after_a_kill_and_a_cut_behind_it(studio):
    scene = studio.record_after_kill("killed", studio.record("alone", "short"))
    assert count_bad(scene, "weak").examples == []
