"""What counts as a broken promise."""

import dataclasses

from crash.oracle import Acknowledged, Begun, Golden, Picture, Recovered, judge

GOLDEN = Golden(
    pictures={"a": Picture("pa", "la"), "b": Picture("pb", "lb")},
    steps={"a": ("a1", "a2", "a3"), "b": ("b1", "b2", "b3")},
    states={("b", 2): "sb2"},
)
SAID = Acknowledged({"a": 3, "b": 2}, frozenset({"a"}))
FOUND = Recovered(done={"a": Picture("pa", "la")}, begun={"b": Begun(2, "b2", "sb2")})


def kinds(recovered, said=SAID):
    return [fault.kind for fault in judge(GOLDEN, said, recovered)]


def found(**changes):
    return dataclasses.replace(FOUND, **changes)


def test_what_was_said_is_enough():
    assert kinds(FOUND) == []


def test_more_than_what_was_said_is_good_too():
    assert kinds(found(begun={"b": Begun(3, "b3", "sb3")})) == []
    assert kinds(found(done={**FOUND.done, "b": Picture("pb", "lb")}, begun={})) == []


def test_a_finished_picture_that_is_gone_is_lost():
    assert kinds(found(done={})) == ["lost"]


def test_a_step_that_was_durable_and_is_gone_would_be_repeated():
    assert kinds(found(begun={"b": Begun(1, "b1", "sb1")})) == ["repeated"]
    assert kinds(found(begun={})) == ["repeated"]


def test_other_bits_are_not_accepted():
    assert kinds(found(done={"a": Picture("px", "la")})) == ["accepted"]
    assert kinds(found(begun={"b": Begun(2, "b1", "sb2")})) == ["accepted"]
    assert kinds(found(begun={"b": Begun(2, "b2", "another history")})) == ["accepted"]
    assert kinds(found(begun={"b": Begun(4, "b4", "sb4")})) == ["accepted"]


def test_a_picture_that_nobody_asked_for_is_not_accepted():
    assert kinds(found(done={**FOUND.done, "c": Picture("pc", "lc")})) == ["accepted"]


def test_a_torn_file_and_an_error_are_faults():
    assert kinds(found(torn=("ckpt.0: not whole",))) == ["torn"]
    assert kinds(Recovered(stuck="UsageError: job.json")) == ["stuck"]


def test_events_say_what_is_durable():
    lines = [
        '{"event": "ImageStarted", "stem": "a"}\n',
        '{"event": "StepDone", "stem": "a", "durable_step": 1}\n',
        '{"event": "StepDone", "stem": "a", "durable_step": 2}\n',
        '{"event": "ImageDone", "stem": "a"}\n',
        '{"event": "StepDone", "stem": "a", "durable_step": 3',
    ]
    assert Acknowledged.read(lines) == Acknowledged({"a": 2}, frozenset({"a"}))
