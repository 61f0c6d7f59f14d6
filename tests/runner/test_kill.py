"""A job killed at random moments and gone on with, against the same job left alone."""

import hashlib
import json
import random
import signal
import time

import pytest
from command import Workspace, wait_for

EVERY_POLICY_AND_SAMPLER = """
[defaults]
prompt = "a red house on the left on grass by day"
negative_prompt = "blurry"
seed = 20260812
steps = 10
[matrix]
policy = ["full", "spectrum", "features", "guidance_reuse"]
sampler = ["euler", "ab2", "dpmpp_2m"]
[policy.features]
kind = "spectrum"
forecast = "features"
coordinate = "sigma"
warmup_steps = 3
tail_steps = 2
penalize_constant = false
[policy.guidance_reuse]
kind = "guidance_reuse"
warmup_steps = 2
[[exclude]]
policy = "spectrum"
sampler = "ab2"
[[exclude]]
policy = "spectrum"
sampler = "dpmpp_2m"
[[exclude]]
policy = "features"
sampler = "ab2"
[[exclude]]
policy = "features"
sampler = "dpmpp_2m"
"""
KILLS = 20


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The job's results without any interruption."""
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(EVERY_POLICY_AND_SAMPLER))
    return workspace.results()


def digests(folder, pattern):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob(pattern)}


def run_and_kill(workspace, job, seconds):
    """Kill the job so long after its first word, and tell whether it was still running then."""
    process = workspace.start("run", job, "--events", "events.jsonl")
    wait_for(process, "images:")
    time.sleep(seconds)
    process.kill()
    process.communicate()
    return process.returncode == -signal.SIGKILL


def check_nothing_was_made_twice(workspace):
    events = [json.loads(line) for line in (workspace.folder / "events.jsonl").read_text().splitlines()]
    done = [event["stem"] for event in events if event["event"] == "ImageDone"]
    assert len(done) == len(set(done))
    steps = [(event["stem"], event["report"]["index"]) for event in events if event["event"] == "StepDone"]
    assert len(steps) == len(set(steps)), "a step that was durable was made again"


def test_a_job_killed_twenty_times_gives_the_same_bits_and_makes_nothing_twice(golden, tmp_path):
    seed = time.time_ns()
    print(f"moments drawn from seed {seed}")  # shown when the test fails
    moments = random.Random(seed)
    kills = rounds = 0
    while kills < KILLS:  # a job that is finished before its twentieth kill is followed by another
        rounds += 1
        workspace = Workspace(tmp_path / str(rounds))
        job = workspace.write_job(EVERY_POLICY_AND_SAMPLER)
        manifests: dict[str, str] = {}
        while kills < KILLS and len(manifests) < len(golden):
            kills += run_and_kill(workspace, job, moments.uniform(0, 2))
            now = digests(workspace.folder / "manifests", "*.json")
            assert manifests.items() <= now.items(), "a finished image's manifest changed"
            manifests = now
        # An image whose first steps were hit three times in a row was given up, and goes on with this.
        workspace.run("run", job, "--retry-failed", "--events", "events.jsonl")
        assert workspace.results() == golden
        check_nothing_was_made_twice(workspace)


def restart_at(workspace, job, line, number):
    process = workspace.start("run", job)
    wait_for(process, line)
    process.send_signal(number)
    process.communicate()
    return process.returncode


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_step_end_and_the_job_goes_on_later(golden, workspace, number, code):
    job = workspace.write_job(EVERY_POLICY_AND_SAMPLER)
    assert restart_at(workspace, job, "step 4/10", number) == code
    begun = workspace.json("status", job)
    assert begun["begun"] + begun["done"] >= 1
    assert restart_at(workspace, job, "spectrum", number) == code
    workspace.run("run", job)
    assert workspace.results() == golden


def test_a_stopped_image_says_so_in_its_manifest(workspace):
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 30\n')
    assert restart_at(workspace, job, "step 3/30", signal.SIGTERM) == 143
    workspace.run("run", job)
    (manifest,) = workspace.manifests().values()
    first, second = manifest["runs"]
    assert (first["first_step"], first["resumed"], second["resumed"]) == (1, False, True)
    assert second["first_step"] == first["last_step"] + 1
    assert second["last_step"] == 30


def test_a_second_signal_ends_the_process_at_once_and_loses_no_durable_step(golden, workspace):
    job = workspace.write_job(EVERY_POLICY_AND_SAMPLER)
    for _ in range(5):  # a step may end between the two signals
        process = workspace.start("run", job)
        wait_for(process, "step ")
        process.send_signal(signal.SIGINT)
        wait_for(process, "a second signal stops at once")
        process.send_signal(signal.SIGINT)
        process.communicate()
        if process.returncode == -signal.SIGINT:
            break
        assert process.returncode == 130
    assert process.returncode == -signal.SIGINT
    assert workspace.json("status", job)["images"][0]["from_step"] >= 1
    workspace.run("run", job)
    assert workspace.results() == golden


def test_a_second_runner_on_the_same_job_exits_and_names_the_first(workspace):
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 200\n')
    process = workspace.start("run", job)
    wait_for(process, "step 1/200")
    refused = workspace.run("run", job, check=6)
    assert f"pid {process.pid}" in refused.stderr
    process.kill()
    process.communicate()
