"""Every signal at steps of every policy: the same bits, nothing made twice. `just kill` takes every step."""

import json
import os
import random
import re
import signal
import time

import pytest
from command import Workspace, wait_for

STEPS = 5
EVERY_POLICY = f"""
[run]
threads = 1
[defaults]
prompt = "a red house"
seed = 11
steps = {STEPS}
[matrix]
policy = ["full", "latents", "features", "thrifty"]
[policy.latents]
kind = "spectrum"
warmup_steps = 2
stop_fraction = 1.0
[policy.features]
kind = "spectrum"
forecast = "features"
warmup_steps = 2
stop_fraction = 1.0
[policy.thrifty]
kind = "guidance_reuse"
warmup_steps = 1
"""
POINTS = [(image, step) for image in range(1, 5) for step in range(1, STEPS + 1)]
EVERY = int(os.environ.get("KILL_EVERY", "4"))  # of the points; 1: all


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The job's results without any interruption."""
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(EVERY_POLICY))
    return workspace.results()


def choose_points():
    """Every n-th image and step, from a random one on."""
    seed = time.time_ns()
    print(f"points drawn from seed {seed}")  # shown when the test fails
    return POINTS[random.Random(seed).randrange(EVERY) :: EVERY]


def signal_at(workspace, job, image, step, *numbers):
    """Send the signals once that step of the image, or a later one, is told; the exit code."""
    done = len(workspace.manifests())
    process = workspace.start("run", job, "--events", "events.jsonl")
    wait_for(process, f"[{image - done}/{4 - done}]")
    for line in process.stderr:
        if (told := re.match(rf"  step (\d+)/{STEPS}: ", line)) and int(told[1]) >= step:
            break
    process.send_signal(numbers[0])
    if len(numbers) > 1:
        wait_for(process, "a second signal stops at once")
        process.send_signal(numbers[1])
    process.communicate()
    return process.returncode


def check_nothing_was_made_twice(workspace):
    lines = (workspace.folder / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    steps = [(event["stem"], event["report"]["index"]) for event in events if event["event"] == "StepDone"]
    assert len(steps) == len(set(steps)), "a step that was durable was made again"
    done = [event["stem"] for event in events if event["event"] == "ImageDone"]
    assert len(done) == len(set(done))


@pytest.mark.parametrize(
    ("numbers", "codes"),
    [
        ((signal.SIGKILL,), {-signal.SIGKILL, 0}),  # 0: it had nothing left to do
        ((signal.SIGTERM,), {143}),
        ((signal.SIGINT,), {130}),
        ((signal.SIGINT, signal.SIGINT), {-signal.SIGINT, 130}),  # 130: the step ended between the two
    ],
    ids=["kill", "term", "int", "int-int"],
)
def test_a_signal_at_steps_of_every_policy_leaves_the_same_bits(golden, workspace, numbers, codes):
    job = workspace.write_job(EVERY_POLICY)
    for image, step in choose_points():
        if len(workspace.manifests()) < image:  # it is not done yet
            assert signal_at(workspace, job, image, step, *numbers) in codes
    workspace.run("run", job, "--events", "events.jsonl")
    assert workspace.results() == golden
    check_nothing_was_made_twice(workspace)
