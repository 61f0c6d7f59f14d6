"""Jobs in the queues of cores: their order, their faults, and that no thread stays behind."""

import contextlib
import threading

import numpy as np
import pytest

from anima_batch.backends.accelerator import CoreQueues
from anima_batch.errors import BackendError


def give(value):
    return lambda: np.full(1, value)


def fail():
    raise BackendError("rknn_run failed")


@pytest.mark.parametrize("beside", [False, True])
def test_a_cores_jobs_end_in_the_order_in_which_they_were_given(beside):
    with CoreQueues(1, beside=beside) as queues:
        for number in range(20):
            queues.submit(0, f"job {number}", give(number))
        ended = [queues.take() for _ in range(20)]
    assert [(key, int(output[0])) for key, output in ended] == [(f"job {number}", number) for number in range(20)]


def test_beside_the_host_a_job_runs_while_the_host_goes_on():
    begun, gone_on = threading.Event(), threading.Event()

    def job():
        begun.set()
        assert gone_on.wait(60)
        return np.ones(1)

    with CoreQueues(1, beside=True) as queues:
        queues.submit(0, "long", job)
        assert begun.wait(60)
        gone_on.set()
        assert queues.take()[0] == "long"


def test_two_cores_work_at_the_same_time():
    meeting = threading.Barrier(2, timeout=60)
    with CoreQueues(2, beside=True) as queues:
        for core in range(2):
            queues.submit(core, core, lambda: np.ones(meeting.wait() + 1))
        assert {queues.take()[0] for _ in range(2)} == {0, 1}


@pytest.mark.parametrize("beside", [False, True])
def test_a_fault_is_raised_to_the_host_with_its_own_type(beside):
    def run_sick():
        with CoreQueues(1, beside=beside) as queues:
            queues.submit(0, "sick", fail)
            queues.take()

    with pytest.raises(BackendError, match="rknn_run failed"):
        run_sick()


def test_leaving_drops_what_has_not_begun_and_ends_the_threads():
    before, begun, may_end, done = threading.active_count(), threading.Event(), threading.Event(), []

    def long():
        begun.set()
        assert may_end.wait(60)
        return np.ones(1)

    with contextlib.suppress(ZeroDivisionError), CoreQueues(1, beside=True) as queues:
        queues.submit(0, "long", long)
        queues.submit(0, "dropped", lambda: done.append(1))
        assert begun.wait(60)
        threading.Timer(0.1, may_end.set).start()
        raise ZeroDivisionError
    assert done == []
    assert threading.active_count() <= before + 1  # the timer
