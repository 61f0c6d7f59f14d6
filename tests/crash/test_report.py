"""The table of crash tests."""

from crash.report import Fault, Result, Tally, format_table, result_json

GOOD = Result("model", "weak metadata", 20_000, 0, {"in place": 7, "manifest before picture": 1}, 61.2)


def test_a_result_passes_when_nothing_was_bad_and_every_control_was_caught():
    assert GOOD.passed
    assert not Result("model", "weak", 10, 1, {"in place": 7}, 1.0).passed
    assert not Result("model", "weak", 10, 0, {"in place": 0}, 1.0).passed
    assert not Result("model", "weak", 0, 0, {"in place": 3}, 1.0).passed


def test_the_table_has_a_line_a_result_and_their_sum():
    other = Result("strace", "SIGKILL", 5, 1, {"in place": 0}, 3.0, ("call 7: lost: a",))
    assert format_table([GOOD, other]).splitlines() == [
        "method  file system / metadata order  states  bad  controls caught  seconds",
        "------  ----------------------------  ------  ---  ---------------  -------",
        "model   weak metadata                 20,000    0              2/2       61",
        "strace  SIGKILL                            5    1              0/1        3",
        "all                                   20,005    1              2/3       64",
        "BAD: strace, SIGKILL: call 7: lost: a",
        "NOT CAUGHT: strace, SIGKILL: in place",
    ]


def test_json_has_the_counts_of_the_table():
    content = result_json(GOOD)
    assert (content["states"], content["bad"], content["controls_caught"], content["controls_of"]) == (20_000, 0, 2, 2)
    assert content["passed"] is True


def test_a_tally_counts_states_and_kinds_and_keeps_the_first_examples():
    tally = Tally()
    tally.add([], "one")
    for number in range(7):
        tally.add([Fault("lost", "a"), Fault("lost", "b"), Fault("torn", "c")], f"state {number}")
    assert (tally.states, tally.bad, tally.kinds) == (8, 7, {"lost": 7, "torn": 7})
    assert len(tally.examples) == 5
    assert tally.examples[0] == "state 0: lost: a; lost: b; torn: c"
