"""The simulated board beside the published one, and what holds for any machine."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anima_batch.board import Choice, Conditions, load_table, simulate
from anima_batch.board.choice import list_choices
from anima_batch.board.table import BRANCHES, Branches, BranchTimes
from anima_batch.job import ImageRequest, SpectrumPolicy
from anima_batch.sampling import planned_passes

PUBLISHED = Choice("on-demand", interleave=False)
FULL_20, SPECTRUM_20 = 2408.54, 1356.58  # seconds


@pytest.fixture(scope="module")
def board():
    return load_table("rock-5c")


def spectrum_passes(steps):
    request = ImageRequest(prompt="", seed=1, width=512, height=512, steps=steps, policy=SpectrumPolicy())
    return planned_passes(request)


def levelled(table):
    """Every session with the mean lifecycle, as in the published estimates."""
    sums = {
        key: sum(getattr(table.times(branch), key) for branch in BRANCHES) / 3
        for key in ("load_seconds", "init_seconds", "release_seconds")
    }
    branches = {branch: table.times(branch).model_copy(update=sums) for branch in BRANCHES}
    return table.model_copy(update={"branches": Branches(**branches)})


def test_twenty_computed_steps_take_the_published_time_within_2_percent(board):
    assert simulate(board, [2] * 20, PUBLISHED).denoise_seconds == pytest.approx(FULL_20, rel=0.02)


def test_spectrum_takes_the_published_time_within_3_percent(board):
    passes = spectrum_passes(20)
    assert sum(map(bool, passes)) == 11
    assert simulate(board, passes, PUBLISHED).denoise_seconds == pytest.approx(SPECTRUM_20, rel=0.03)


def test_the_npu_is_busy_for_63_percent_of_the_published_step(board):
    assert simulate(board, [2], PUBLISHED).accelerator_share == pytest.approx(76.21 / 120.43, abs=0.005)


def test_a_step_spends_the_published_seconds_on_sessions(board):
    assert simulate(board, [2], PUBLISHED).lifecycle_seconds == pytest.approx(31.71, abs=0.005)


@pytest.mark.parametrize("capacity", [1, 4, 8, 16, 28, 56, 83])
def test_a_cache_of_fewer_than_all_sessions_never_hits_in_1092_uses(board, capacity):
    found = simulate(board, spectrum_passes(28), Choice("cached", pinned=capacity))
    assert (found.hits, found.misses) == (0, 1092)


def test_a_cache_of_all_sessions_misses_each_once(board):
    found = simulate(board, spectrum_passes(28), Choice("cached", pinned=84))
    assert (found.hits, found.misses) == (12 * 84, 84)


def test_pinning_16_sessions_of_the_mean_lifecycle_saves_the_published_72_seconds(board):
    """Published: 72.4 of 412.2 seconds, by means. The last digit was cut off: 31.708 x 12 x 16 / 84 is 72.475."""
    passes, table = spectrum_passes(28), levelled(board)
    plain = simulate(table, passes, PUBLISHED)
    saved = plain.denoise_seconds - simulate(table, passes, Choice("pinned", pinned=16)).denoise_seconds
    assert plain.lifecycle_seconds == pytest.approx(412.2, abs=0.1)
    assert saved == pytest.approx(72.475, abs=0.01)


def test_pinning_the_first_16_sessions_saves_what_these_take(board):
    """Five blocks and one self-attention, twelve times over: 1 % more than by means."""
    passes = spectrum_passes(28)
    saved = simulate(board, passes, PUBLISHED).denoise_seconds
    saved -= simulate(board, passes, Choice("pinned", pinned=16)).denoise_seconds
    expected = 12 * (5 * board.lifecycle_seconds / 28 + board.times("self_attn").lifecycle_seconds)
    assert saved == pytest.approx(expected)
    assert saved == pytest.approx(72.4, rel=0.01)


def test_keeping_all_sessions_saves_the_published_bound(board):
    passes = spectrum_passes(28)
    saved = simulate(board, passes, PUBLISHED).denoise_seconds
    saved -= simulate(board, passes, Choice("resident")).denoise_seconds
    assert saved == pytest.approx(380.50, abs=0.1)


def test_working_ahead_with_interleaved_streams_is_predicted_to_keep_the_npu_busy(board):
    found = simulate(board, spectrum_passes(20), Choice("ahead", interleave=True))
    assert found.denoise_seconds <= 900
    assert found.accelerator_share >= 0.97
    assert found.peak_bytes <= board.block_bytes  # three sessions: two more than on demand


def test_a_second_core_is_predicted_to_bring_spectrum_under_560_seconds(board):
    found = simulate(board, spectrum_passes(20), Choice("ahead", interleave=True, cores=2))
    assert found.denoise_seconds <= 560
    assert found.busy_share("core 1") >= 0.95
    assert found.busy_share("core 0") == pytest.approx((24.00 + 7.45) / 44.76 * found.busy_share("core 1"), abs=1e-4)


def test_a_context_for_each_stream_is_bound_by_the_stager_with_twice_the_sessions(board):
    """Twice 31.71 seconds of lifecycle a step, eleven times: 697.6, and what a step's first and last sessions add."""
    found = simulate(board, spectrum_passes(20), Choice("ahead", True, cores=2, contexts_per_stream=True))
    assert found.lifecycle_seconds == pytest.approx(2 * 11 * 31.71, abs=0.1)
    assert 697.6 <= found.denoise_seconds <= 697.6 * 1.015
    assert found.busy_share("stager") > 0.98


def test_a_step_without_guidance_runs_one_stream(board):
    found = simulate(board, [1], PUBLISHED)
    runs = [event.activity for event in found.events if event.activity.kind == "run"]
    assert {activity.stream for activity in runs} == {0}
    assert math.fsum(activity.seconds for activity in runs) == pytest.approx(76.21 / 2, abs=0.001)


def test_conditions_against_the_assumptions_cost_what_can_no_longer_overlap(board):
    choice = Choice("ahead", interleave=True)
    free = simulate(board, [2] * 3, choice).computed_step_seconds
    locked = simulate(board, [2] * 3, choice, Conditions(one_lock=True)).computed_step_seconds
    exclusive = simulate(board, [2] * 3, choice, Conditions(exclusive_driver=True)).computed_step_seconds
    assert free <= locked <= free + board.lifecycle_seconds
    assert exclusive == pytest.approx(76.21 + 12.90 + 4.84, rel=0.01)


SECONDS = st.floats(0, 2)
TIMES = st.builds(
    BranchTimes,
    bytes=st.integers(0, 10),
    load_seconds=SECONDS,
    init_seconds=SECONDS,
    run_seconds=SECONDS,
    release_seconds=SECONDS,
    prepare_seconds=SECONDS,
    finish_seconds=SECONDS,
)
BRANCH_TABLES = st.builds(Branches, self_attn=TIMES, cross_attn=TIMES, mlp=TIMES)
CHOICES = st.builds(
    Choice,
    staging=st.sampled_from(["on-demand", "ahead", "pinned", "resident", "cached"]),
    interleave=st.booleans(),
    cores=st.integers(1, 2),
    pinned=st.integers(0, 8),
    ahead_bytes=st.integers(0, 60),
    contexts_per_stream=st.booleans(),
)


@settings(deadline=None, max_examples=60)  # a machine may be busy
@given(
    branches=BRANCH_TABLES,
    choice=CHOICES,
    passes=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    conditions=st.builds(Conditions, st.booleans(), st.booleans()),
)
def test_on_any_machine_and_in_any_way_a_step_is_whole(branches, choice, passes, conditions):
    """Nothing holds a resource that another holds, a session is open while it runs, each stream runs its blocks in
    order, and the whole is no shorter than any resource's work.
    """
    table = load_table("rock-5c").model_copy(update={"branches": branches, "blocks": 2, "begin_seconds": 0.5})
    found = simulate(table, passes, choice, conditions)
    work = found.denoise_seconds
    held = {}
    for event in found.events:
        for resource in event.activity.resources:
            held.setdefault(resource, []).append(event)
    for resource, events in held.items():
        events.sort(key=lambda event: (event.start, event.end))
        assert all(a.end <= b.start for a, b in itertools.pairwise(events)), resource
        assert work >= math.fsum(event.activity.seconds for event in events) - 1e-9
    check_sessions(found)
    check_streams(found)
    assert sum(found.step_seconds) <= work + 1e-9
    assert found.hits + found.misses >= 6 * sum(map(bool, passes))


def check_sessions(found):
    """Each run lies between the end of an init of its subgraph and the start of the release that follows."""
    for run in (event for event in found.events if event.activity.kind == "run"):
        same = [event for event in found.events if event.activity.subgraph == run.activity.subgraph]
        opened = sum(event.end <= run.start for event in same if event.activity.kind == "init")
        closing = sum(event.start < run.end for event in same if event.activity.kind == "release")
        assert opened > closing or (opened == closing and run.activity.seconds == 0)


def check_streams(found):
    for stream in (0, 1):
        runs = [event for event in found.events if event.activity.kind == "run" and event.activity.stream == stream]
        order = [(event.activity.step, event.activity.subgraph) for event in runs]
        assert order == sorted(order)
        assert all(a.end <= b.start for a, b in itertools.pairwise(runs))


def test_every_choice_worth_a_line_has_a_name_of_its_own(board):
    names = [choice.name for choice in list_choices(board)]
    assert len(set(names)) == len(names)
    assert names[0] == "on-demand, plain"
    assert "ahead, interleaved, 2 cores" in names
