"""The backend that fails on purpose, and what is checked of every backend's outputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from anima_batch.backends.base import Stopwatch, check_output
from anima_batch.backends.faults import Fault, FaultPlan, FaultyBackend, parse_faults
from anima_batch.errors import BackendError


class OnesBackend:
    """A backend whose every graph gives ones."""

    name, suffix, cores, watch = "ones", ".ones", 1, Stopwatch()

    def open(self, path, core=0):
        return SimpleNamespace(inputs=(), run=lambda feeds: np.ones((1, 4, 8), np.float32), close=lambda: None)

    def versions(self):
        return {"ones": "1"}


def open_session(*faults):
    plan = FaultPlan([Fault(**fault) for fault in faults])
    return plan, FaultyBackend(OnesBackend(), plan).open("graph")


def test_a_fault_strikes_once_a_stage_and_only_its_own():
    plan, session = open_session({"kind": "error_code", "seed": 7, "step": 2})
    for stage, seed, step, fails in (("step", 7, 1, False), ("step", 8, 2, False), ("decode", 7, None, False),
                                     ("step", 7, 2, True), ("step", 7, 2, True)):  # fmt: skip
        plan.begin(stage, seed, step)
        if fails:
            with pytest.raises(BackendError, match="code -1"):
                session.run({})
        assert session.run({}).shape == (1, 4, 8)


def test_firings_are_counted_in_a_file_so_that_they_survive_the_process(tmp_path):
    fault = {"kind": "exception", "times": 2, "ledger": str(tmp_path / "ledger")}
    for fails in (True, True, False):
        plan, session = open_session(fault)  # as a fresh process does
        plan.begin("step", 1, 1)
        if fails:
            with pytest.raises(RuntimeError):
                session.run({})
        else:
            session.run({})


def test_outputs_are_spoiled_as_a_sick_runtime_does():
    for kind, spoiled in (("none", lambda output: output is None),
                          ("wrong_shape", lambda output: output.shape == (1, 4, 7)),
                          ("nan", lambda output: np.isnan(output).all())):  # fmt: skip
        plan, session = open_session({"kind": kind})
        plan.begin("step", 1, 1)
        assert spoiled(session.run({}))


def test_faults_are_read_from_json_and_nothing_else_is_taken():
    (fault,) = parse_faults('[{"kind": "hang", "seed": 3, "step": 2}]')
    assert (fault.kind, fault.stage, fault.seed, fault.step, fault.times) == ("hang", "step", 3, 2, None)
    with pytest.raises(ValueError, match="colour"):
        parse_faults('[{"kind": "hang", "colour": 3}]')


@pytest.mark.parametrize(
    ("output", "got"), [(None, "NoneType"), ([1.0], "list"), (np.zeros((1, 4, 7)), "shape (1, 4, 7)")]
)
def test_an_output_that_is_no_array_of_the_right_shape_is_an_error(output, got):
    with pytest.raises(BackendError) as caught:
        check_output("transformer.00.mlp", output, (1, 4, 8))
    assert str(caught.value) == f"transformer.00.mlp: its output must have shape (1, 4, 8), got {got}"
