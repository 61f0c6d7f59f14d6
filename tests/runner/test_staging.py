"""Jobs under every choice of staging and interleaving: killed, resumed, sick, short of memory; always the same bits."""

import json
import subprocess

import pytest
from command import COMMAND, Workspace, wait_for
from memory_group import memory_group

JOB = """
[run]
threads = 1
[defaults]
prompt = "a red house on the left on grass by day"
negative_prompt = "blurry"
seed = 20260812
steps = 6
[matrix]
policy = ["features", "guidance_reuse"]
[policy.features]
kind = "spectrum"
forecast = "features"
warmup_steps = 3
tail_steps = 1
[policy.guidance_reuse]
kind = "guidance_reuse"
warmup_steps = 2
"""
STAGINGS = ("on-demand", "ahead", "pinned", "resident")
CHOICES = [(staging, interleave) for staging in STAGINGS for interleave in ("--no-interleave", "--interleave")]


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The job's results, made with everything as plain as can be and without interruption."""
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(JOB), "--staging", "on-demand", "--no-interleave")
    return workspace.results()


@pytest.mark.parametrize(("staging", "interleave"), CHOICES)
def test_a_job_that_is_killed_and_resumed_gives_the_same_bits(golden, workspace, staging, interleave):
    job = workspace.write_job(JOB)
    command = ("run", job, "--staging", staging, "--pinned", "5", interleave, "--events", "events.jsonl")
    for line in ("step 3/6", "guidance_reuse"):
        process = workspace.start(*command)
        wait_for(process, line)
        process.kill()
        process.communicate()
    workspace.run(*command)
    assert workspace.results() == golden
    events = [json.loads(line) for line in (workspace.folder / "events.jsonl").read_text().splitlines()]
    steps = [(event["stem"], event["report"]["index"]) for event in events if event["event"] == "StepDone"]
    assert len(steps) == len(set(steps)), "a step that was durable was made again"


def test_each_resume_may_choose_anew(golden, workspace):
    job = workspace.write_job(JOB)
    for staging, interleave, line in (
        ("ahead", "--interleave", "step 2/6"),
        ("resident", "--no-interleave", "step 4/6"),
        ("pinned", "--interleave", "guidance_reuse"),
    ):
        process = workspace.start("run", job, "--staging", staging, interleave)
        wait_for(process, line)
        process.kill()
        process.communicate()
    workspace.run("run", job, "--staging", "on-demand", "--interleave")
    assert workspace.results() == golden


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("error_code", ("backend", "rknn_run failed with code -1")),
        ("out_of_memory", ("memory", "out of memory")),
        ("exit", ("worker", "the worker process ended with exit code 3")),
        ("hang", ("worker", "the worker process gave no answer to step for ")),
    ],
)
def test_a_fault_in_the_thread_that_opens_graphs_fails_its_image_and_no_other(workspace, kind, error):
    workspace.make_faults({"kind": kind, "at": "open", "seed": 2, "step": 2, "amount": 3})
    job = workspace.write_job(
        '[run]\nthreads = 1\nstaging = "ahead"\ndeadline_seconds = 3\n'
        '[defaults]\nprompt = "a boat"\nsteps = 3\n[matrix]\nseed = ["1..3"]\n'
    )
    workspace.run("run", job, check=1)
    failed = [manifest for manifest in workspace.manifests().values() if manifest["status"] == "failed"]
    assert [manifest["request"]["seed"] for manifest in failed] == [2]
    assert failed[0]["error"]["kind"] == error[0]
    assert failed[0]["error"]["step"] == 2
    assert error[1] in failed[0]["error"]["message"]
    assert "\n" not in failed[0]["error"]["message"]


def test_a_fault_in_that_thread_that_a_fresh_process_cures_costs_nothing_but_time(golden, workspace):
    workspace.make_faults({"kind": "segfault", "at": "open", "step": 2, "times": 1})
    ended = workspace.run("run", workspace.write_job(JOB), "--staging", "ahead")
    assert ended.stderr.count(": again in a fresh process") == 1
    assert workspace.results() == golden


def run_inside(words, workspace, *options):
    """The ended command in a memory control group."""
    return subprocess.run(
        [*words, *COMMAND, "run", workspace.write_job(JOB), "--recycle", "1", *options],
        cwd=workspace.folder, env=workspace.environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("staging", ["ahead", "pinned", "resident"])
def test_with_less_memory_than_the_gate_wants_staging_falls_back_which_is_said_once_and_recorded(
    golden, workspace, staging
):
    with memory_group(1_200_000_000) as inside:
        ended = run_inside(inside, workspace, "--staging", staging)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("staging fell back to on-demand: ") == 1  # though each image had a process of its own
    assert workspace.results() == golden
    for manifest in workspace.manifests().values():
        (warning,) = [text for text in manifest["warnings"] if "staging fell back" in text]
        found, wanted = (int(word) for word in warning.split() if word.isdigit())
        assert found < 1_200_000_000 / 2**20 < wanted == 1536


def test_with_as_little_memory_and_a_gate_that_wants_less_nothing_falls_back(golden, workspace):
    with memory_group(1_200_000_000) as inside:
        ended = run_inside(inside, workspace, "--staging", "resident", "--min-available-mib", "100")
    assert ended.returncode == 0, ended.stderr
    assert "fell back" not in ended.stderr
    assert workspace.results() == golden
    assert not any(manifest["warnings"] for manifest in workspace.manifests().values())


def test_on_demand_wants_no_memory(workspace):
    workspace.run("run", workspace.write_job(JOB), "--staging", "on-demand", "--min-available-mib", "1000000")
    assert not any(manifest["warnings"] for manifest in workspace.manifests().values())
