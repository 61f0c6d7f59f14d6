"""The event simulation, over random activities: resources, dependencies, and the least that all of it can take."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anima_batch.board.engine import Activity, run_activities

RESOURCES = ("host", "stager", "core 0", "core 1")
EPSILON = 1e-9  # of sums of seconds


@st.composite
def activities(draw):
    """Up to fifteen, each after some of those before it."""
    made = []
    for place in range(draw(st.integers(1, 15))):
        after = draw(st.lists(st.integers(0, place - 1), max_size=3)) if place else []
        resources = draw(st.lists(st.sampled_from(RESOURCES), min_size=1, max_size=2, unique=True))
        seconds = draw(st.one_of(st.just(0.0), st.floats(0.001, 10)))
        cpus = draw(st.sampled_from([0.0, 1.0, 2.0]))
        made.append(Activity("run", seconds, tuple(resources), tuple(after), cpus))
    return made


@settings(deadline=None)  # a machine may be busy
@given(work=activities(), cpus=st.integers(1, 4), slowdown=st.sampled_from([1.0, 1.5]))
def test_no_resource_is_used_twice_dependencies_hold_and_nothing_is_faster_than_its_work(work, cpus, slowdown):
    events = run_activities(work, cpus, slowdown)
    assert [event.activity for event in events] == work
    for event in events:
        assert event.end - event.start >= event.activity.seconds - EPSILON
        assert all(events[place].end <= event.start for place in event.activity.after)
    for a, b in itertools.combinations(events, 2):
        if set(a.activity.resources) & set(b.activity.resources):
            assert a.end <= b.start or b.end <= a.start
    total = max(event.end for event in events)
    for resource in RESOURCES:
        assert total >= math.fsum(a.seconds for a in work if resource in a.resources) - EPSILON
    assert total >= math.fsum(a.seconds * a.cpus for a in work if a.cpus) / max(cpus, 2) - EPSILON
    assert run_activities(work, cpus, slowdown) == events


@settings(deadline=None)
@given(work=activities())
def test_something_is_under_way_at_all_times_so_that_it_never_takes_longer_than_one_after_the_other(work):
    total = max(event.end for event in run_activities(work, 100, 1.0))
    assert total <= math.fsum(activity.seconds for activity in work) + EPSILON


def test_two_that_need_a_processor_each_share_the_only_one():
    work = [Activity("run", 2.0, ("core 0",), cpus=1.0), Activity("load", 1.0, ("stager",), cpus=1.0)]
    run, load = run_activities(work, 1, 1.0)
    assert (load.end, run.end) == (2.0, 3.0)  # side by side at half speed until the shorter one is done


def test_work_that_overlaps_is_slowed_while_it_does():
    work = [Activity("run", 2.0, ("core 0",)), Activity("load", 1.0, ("stager",))]
    run, load = run_activities(work, 8, 1.5)
    assert load.end == pytest.approx(1.5)
    assert run.end == pytest.approx(2.5)  # the second half of it alone


def test_of_two_that_wait_for_a_resource_the_first_in_the_list_gets_it():
    work = [Activity("run", 1.0, ("host",)), Activity("run", 1.0, ("host",)), Activity("run", 1.0, ("host",))]
    assert [event.start for event in run_activities(work, 8, 1.0)] == [0.0, 1.0, 2.0]
