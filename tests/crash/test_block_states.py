"""Disks made from a log: what may be lost, and what may not."""

import json
import random

import pytest

from crash.block_states import Cut, Recording, choose_cuts, find_unflushed, make_states
from crash.logged_device import Event, Flush, Write
from crash.mounts import BLOCK_BYTES
from crash.oracle import Acknowledged

STEP = Event(json.dumps({"event": "StepDone", "stem": "a", "durable_step": 1}) + "\n")


def block(letter: str) -> bytes:
    return letter.encode() * BLOCK_BYTES


LOG = [Write(0, block("a")), Flush(), Write(0, block("b")), Write(1, block("c")), Write(0, block("d")), Flush(), STEP]


def record(**changes) -> Recording:
    content = {"name": "x", "job": "x", "image": block(".") * 2, "log": LOG, "first": 0, "acknowledged": Acknowledged()}
    return Recording(**content | changes)


def disk(recording: Recording, cut: Cut) -> str:
    ((_, image, _),) = make_states(recording, [cut])
    return "".join(chr(image[start]) for start in range(0, len(image), BLOCK_BYTES))


@pytest.mark.parametrize(("index", "found"), [(0, ".."), (1, "a."), (2, "a."), (3, "b."), (5, "dc"), (7, "dc")])
def test_a_plain_cut_has_all_writes_before_it(index, found):
    assert disk(record(), Cut(index)) == found


@pytest.mark.parametrize(("lost", "found"), [({4}, "bc"), ({2, 4}, "ac"), ({2}, "dc"), ({3}, "d."), ({2, 3, 4}, "a.")])
def test_a_block_whose_write_is_lost_has_its_newest_content_that_is_not(lost, found):
    assert disk(record(), Cut(5, frozenset(lost))) == found


def test_what_was_flushed_cannot_be_lost():
    assert sorted(find_unflushed(record(), 5)) == [2, 3, 4]
    assert find_unflushed(record(), 6) == []
    assert sorted(find_unflushed(record(), 1)) == [0]


def test_a_disk_that_ignores_flushes_may_lose_what_was_flushed():
    assert sorted(find_unflushed(record(flushes_kept=False), 6)) == [0, 2, 3, 4]
    assert sorted(find_unflushed(record(flushes_kept=False, first=2), 6)) == [2, 3, 4]


def test_what_the_job_has_said_counts_from_its_line_on():
    said = [dict(acknowledged.steps) for _, _, acknowledged in make_states(record(), [Cut(6), Cut(7)])]
    assert said == [{}, {"a": 1}]


def test_every_prefix_is_among_the_cuts_and_the_others_lose_something():
    cuts = choose_cuts(record(), random.Random(1), 14, every_prefix=True)
    assert len(cuts) == len(set(cuts)) == 14
    assert {cut.index for cut in cuts if not cut.lost} == set(range(8))
    assert all(cut.lost <= set(find_unflushed(record(), cut.index)) for cut in cuts)


def test_a_sample_has_plain_cuts_and_others():
    cuts = choose_cuts(record(first=2), random.Random(1), 6, every_prefix=False)
    assert len(cuts) == 6
    assert sum(bool(cut.lost) for cut in cuts) >= 2
    assert min(cut.index for cut in cuts) >= 2
