"""The model in a child process against the same stages in this one: the same bits, whatever happens to the child."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from anima_batch.anima.conditioning import Conditioning
from anima_batch.errors import BackendError, WorkerError
from anima_batch.job import FullPolicy, GuidanceReusePolicy, ImageRequest, RunSpec, SpectrumPolicy
from anima_batch.model_set import find_model_set
from anima_batch.sampling import initial_state, pack_state
from anima_batch.worker import Deadlines, ModelWorker, Opening, WorkerFault
from anima_batch.worker.workbench import Workbench

PICTURE_BOOK = find_model_set("picture-book", Path())
OPENING = Opening(PICTURE_BOOK, "onnx", RunSpec(threads=1))
POLICIES = {
    "full": FullPolicy(),
    "spectrum": SpectrumPolicy(warmup_steps=2),
    "features": SpectrumPolicy(warmup_steps=2, forecast="features"),
    "guidance_reuse": GuidanceReusePolicy(warmup_steps=2),
}


def make_request(policy="full", steps=6):
    return ImageRequest(prompt="a", seed=3, width=128, height=128, steps=steps, policy=POLICIES[policy])


def make_conditioning():
    description = OPENING.model_set.description
    shape = (2, description.text.context_rows, description.transformer.context_dim)
    embeds = np.random.default_rng(1).standard_normal(shape, np.float32)
    return Conditioning(*embeds)


def make_worker(**options):
    return ModelWorker(OPENING, Deadlines(120), **options)


def state_bytes(state):
    tensors, meta = pack_state(state)
    return {name: array.tobytes() for name, array in tensors.items()}, meta


@pytest.fixture(scope="module")
def bench():
    opened = Workbench(OPENING)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def worker():
    with make_worker() as started:
        yield started


def walk(model, request, conditioning, *, disturb=lambda step: None):
    """The state after each step, and the reports without their seconds."""
    state, states, reports = initial_state(request), [], []
    model.prepare(request, conditioning)
    while state.step < request.steps:
        disturb(state.step)
        taken = model.step(state)
        state = taken.state
        states.append(state_bytes(state))
        reports.append((taken.report.index, taken.report.passes, taken.report.latents_xxh3))
    return states, reports


def test_the_contexts_are_the_same_bits(worker, bench):
    prompts = ["a red house", "", "an owl at night"]
    ours, theirs = worker.encode(prompts), bench.encode(prompts)
    assert [array.tobytes() for array in ours] == [array.tobytes() for array in theirs]


def test_the_warnings_are_the_same(worker, bench):
    prompts = ["(a red house:1.2)", "a boat"]
    assert worker.find_warnings(prompts) == bench.find_warnings(prompts)


@pytest.mark.parametrize("policy", POLICIES)
def test_each_state_of_an_image_is_the_same_bits(worker, bench, policy):
    request, conditioning = make_request(policy), make_conditioning()
    assert walk(worker, request, conditioning) == walk(bench, request, conditioning)


@pytest.mark.parametrize("policy", ["features", "guidance_reuse"])
def test_a_fresh_child_before_every_step_gives_the_same_bits(bench, policy):
    request, conditioning = make_request(policy), make_conditioning()
    with make_worker() as fresh:
        found = walk(fresh, request, conditioning, disturb=lambda step: fresh.discard())
    assert found == walk(bench, request, conditioning)


def test_pixels_are_the_same(worker, bench):
    latents = np.random.default_rng(2).standard_normal((16, 16, 16), np.float32)
    assert worker.decode(latents).tobytes() == bench.decode(latents).tobytes()


def test_after_a_death_the_same_call_starts_a_fresh_child():
    request, conditioning = make_request(), make_conditioning()
    with make_worker() as mortal:
        mortal.prepare(request, conditioning)
        first = mortal.step(initial_state(request))
        pid = mortal.pid
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerFault, match="SIGKILL"):
            mortal.step(first.state)
        second = mortal.step(first.state)
        assert mortal.pid != pid
        assert (second.report.index, second.state.step) == (2, 2)


def test_the_child_is_recycled_after_so_many_images():
    with make_worker(recycle=2) as worker:
        pids = []
        for _ in range(4):
            worker.find_warnings(["a"])
            pids.append(worker.pid)
            worker.end_image()
        assert pids[0] == pids[1] != pids[2] == pids[3]


def test_what_is_wrong_with_the_model_set_or_its_options_stops_the_run_as_it_did_in_one_process():
    with ModelWorker(Opening(PICTURE_BOOK, "rknn", RunSpec()), Deadlines(120)) as worker, pytest.raises(BackendError):
        worker.open()


def test_a_child_that_cannot_be_opened_three_times_in_a_row_stops_the_run():
    with (
        ModelWorker(Opening(None, "onnx", RunSpec()), Deadlines(120)) as worker,
        pytest.raises(WorkerError, match=r"^worker: 3 starts in a row failed: AttributeError: "),
    ):
        worker.open()


def test_no_descriptor_is_left_of_children_that_came_and_went():
    before = len(os.listdir("/proc/self/fd"))
    with make_worker() as worker:
        for _ in range(4):
            worker.open()
            worker.discard()
        worker.open()
    assert len(os.listdir("/proc/self/fd")) == before
