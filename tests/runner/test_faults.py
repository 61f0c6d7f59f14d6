"""A sick runtime in the middle of a job: real processes that fail on purpose, the real command line."""

import json
import os
import signal

import psutil
import pytest
from command import COMMAND, Workspace, wait_for
from memory_group import memory_group

STEPS = 3
TEN_IMAGES = f"""
[run]
threads = 1
deadline_seconds = 3
[defaults]
prompt = "a boat"
steps = {STEPS}
[matrix]
seed = ["1..10"]
"""
SICK = 5  # the seed of the image that fails


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The job's results without a fault."""
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(TEN_IMAGES))
    return workspace.results()


def seed_of(stem):
    return int(stem.split("-")[2])


def find_failed(workspace, golden):
    """The manifest of the sick image, after a check that the other nine are as they should be."""
    manifests = workspace.manifests()
    assert len(manifests) == 10
    failed = {stem: manifest for stem, manifest in manifests.items() if manifest["status"] != "done"}
    ((stem, manifest),) = failed.items()
    assert seed_of(stem) == SICK
    assert len(workspace.pictures()) == 9
    for other in manifests.keys() - {stem}:
        assert manifests[other]["latents"]["sha256"] == golden[other][0]
        assert manifests[other]["image"]["pixel_sha256"] == golden[other][1]
    return manifest


FAULTS = {
    "error_code": ("backend", "step 2: {path}: rknn_run failed with code -1"),
    "none": ("backend", "step 2: transformer.00.self_attn: its output must have shape (1, 64, "),
    "wrong_shape": ("backend", "step 2: transformer.00.self_attn: its output must have shape (1, 64, "),
    "nan": ("non_finite", "step 2: 4096 NaN and 0 infinite latents of 4096"),
    "exception": ("unexpected", "step 2: RuntimeError: {path}: rknn_run failed with code -1"),
    "out_of_memory": ("memory", "step 2: out of memory"),
    "memory_limit": ("memory", "step 2: out of memory"),
    "hang": ("worker", "step 2: the worker process gave no answer to step for "),
    "segfault": ("worker", "step 2: the worker process was ended by SIGSEGV, a fault in the runtime or its driver (it"),
    "signal": ("worker", "step 2: the worker process was ended by SIGKILL, most likely for want of memory (it held "),
    "exit": ("worker", "step 2: the worker process ended with exit code 3"),
}
AMOUNTS = {"signal": signal.SIGKILL, "exit": 3, "memory_limit": 64}


def make_fault(kind, **options):
    return {"kind": kind, "seed": SICK, "step": 2, "amount": AMOUNTS.get(kind, 0), **options}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_that_stays_fails_its_image_and_no_other(golden, workspace, kind):
    workspace.make_faults(make_fault(kind))
    job = workspace.write_job(TEN_IMAGES)
    ended = workspace.run("run", job, check=1)
    assert ended.stdout.startswith("9 done, 0 done before, 1 failed, 0 waiting")
    manifest = find_failed(workspace, golden)
    error_kind, message = FAULTS[kind]
    error = manifest["error"]
    assert (error["kind"], error["step"]) == (error_kind, 2)
    head, _, tail = message.partition("{path}")
    assert error["message"].startswith(head)
    assert tail in error["message"]
    assert "\n" not in error["message"]
    assert manifest["image"] is None
    assert [step["index"] for step in manifest["steps"]] == ([1, 2] if kind == "nan" else [1])
    assert manifest["checks"]["finite"] is (kind != "nan")
    again = sum("again in a fresh process" in line for line in ended.stderr.splitlines())
    # Where memory ends in C++ the process may die before Python can say so, and is allowed one more.
    assert again in ((1, 2) if kind == "memory_limit" else (2 if error_kind == "worker" else 1,))


def test_faults_that_a_fresh_process_cures_cost_nothing_but_time(golden, workspace):
    """Each of ten images has one of the faults once, and the decoder of one of them dies, too."""
    kinds = [kind for kind in FAULTS if kind != "memory_limit"]
    faults = [make_fault(kind, seed=seed, times=1) for seed, kind in enumerate(kinds, start=1)]
    workspace.make_faults(*faults, {"kind": "segfault", "stage": "decode", "seed": 2, "times": 1})
    ended = workspace.run("run", workspace.write_job(TEN_IMAGES))
    assert workspace.results() == golden
    assert ended.stderr.count(": again in a fresh process") == 11
    for stem, manifest in workspace.manifests().items():
        assert [run["last_step"] for run in manifest["runs"]] == [STEPS]
        noted = [warning for warning in manifest["warnings"] if "done again in a fresh process" in warning]
        assert len(noted) == (2 if seed_of(stem) == 2 else 1)


def test_a_fault_in_another_stage_fails_the_image_outside_its_steps(golden, workspace):
    workspace.make_faults({"kind": "error_code", "stage": "decode", "seed": SICK, "times": 1},
                          {"kind": "exit", "stage": "decode", "amount": 7, "seed": SICK, "times": 1},
                          {"kind": "error_code", "stage": "decode", "seed": None, "times": 0})  # fmt: skip
    workspace.run("run", workspace.write_job(TEN_IMAGES))
    assert workspace.results() == golden


def test_embeddings_that_are_not_finite_are_not_kept(workspace):
    workspace.make_faults({"kind": "nan", "stage": "encode"})
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 1\n')
    workspace.run("run", job, check=1)
    ((manifest),) = workspace.manifests().values()
    assert (manifest["error"]["kind"], manifest["error"]["step"]) == ("non_finite", None)
    assert "values it is encoded to are not finite" in manifest["error"]["message"]
    assert not list((workspace.folder / "outputs/.conditioning").glob("*.embeds"))
    workspace.make_faults()
    workspace.run("run", job, "--retry-failed")


def test_the_log_of_a_failed_image_has_the_traceback_and_goes_aside_with_its_manifest(workspace):
    workspace.make_faults(make_fault("noise", seed=1, step=1), make_fault("exception", seed=1, step=1))
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 1\n')
    workspace.run("run", job, check=1)
    (log,) = (workspace.folder / "manifests/job").glob("*.log")
    text = log.read_text()
    assert "Traceback" in text
    assert "RuntimeError" in text
    workspace.make_faults()
    workspace.run("run", job, "--retry-failed")
    assert log.with_name(log.name + ".aside-1").read_text() == text
    assert not log.exists()


def test_what_a_runtime_prints_is_kept_from_the_terminal_and_quoted_when_it_dies(workspace):
    workspace.make_faults(make_fault("noise", seed=1, step=1), make_fault("signal", seed=1, step=2))
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 2\n')
    ended = workspace.run("run", job, check=1)
    quoted = 'it last printed "E RKNN: the driver has something to say"'
    (manifest,) = workspace.manifests().values()
    assert quoted not in manifest["error"]["message"]  # the third process had nothing to print
    assert sum(quoted in line for line in ended.stderr.splitlines()) == 1
    assert ended.stderr.count("the driver has something to say") == 1


def test_a_non_finite_image_keeps_its_steps_aside_and_another_failure_goes_on_from_them(golden, workspace):
    workspace.make_faults(make_fault("nan"), make_fault("segfault", seed=6))
    job = workspace.write_job(TEN_IMAGES)
    workspace.run("run", job, check=1)
    checkpoints = sorted(path.name for path in (workspace.folder / "outputs/job/.checkpoints").iterdir())
    assert [name.endswith(".aside-1") for name in checkpoints].count(True) == 1
    workspace.make_faults()
    workspace.run("run", job, "--retry-failed", "--events", "events.jsonl")
    assert workspace.results() == {**golden}
    events = [json.loads(line) for line in (workspace.folder / "events.jsonl").read_text().splitlines()]
    started = {seed_of(event["stem"]): event["from_step"] for event in events if event["event"] == "ImageStarted"}
    assert started == {SICK: 0, 6: 1}


def test_a_slow_leak_is_told(workspace):
    workspace.make_faults({"kind": "leak", "step": 1, "amount": 60})
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nsteps = 1\n[matrix]\nseed = ["1..8"]\n')
    leaking = workspace.run("run", job, "--recycle", "0")
    assert "note: the worker process grew with each of its last " in leaking.stderr


def test_recycling_ends_a_leak(workspace):
    workspace.make_faults({"kind": "leak", "step": 1, "amount": 60})
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nsteps = 1\n[matrix]\nseed = ["1..8"]\n')
    assert "the worker process grew" not in workspace.run("run", job, "--recycle", "3").stderr


def test_a_child_that_the_kernel_kills_for_want_of_memory_is_named_and_the_batch_goes_on(golden, workspace):
    with memory_group(1_500_000_000) as inside:
        workspace.make_faults(make_fault("memory_limit", amount=0))
        workspace.write_job(TEN_IMAGES)
        words = [*inside, *COMMAND, "run", "jobs/job.toml"]
        assert psutil.Popen(words, cwd=workspace.folder, env=workspace.environment).wait() == 1
    message = find_failed(workspace, golden)["error"]["message"]
    assert "the worker process was ended by SIGKILL, most likely for want of memory (it held " in message


def child_of(pid):
    (child,) = psutil.Process(pid).children()
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_lets_the_step_end(workspace, number):
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 200\n')
    process = psutil.Popen(
        ["setsid", *COMMAND, "run", job], cwd=workspace.folder, env=workspace.environment,
        stderr=-1, stdout=-1, text=True,
    )  # fmt: skip
    wait_for(process, "step 2/200")
    os.killpg(process.pid, number)
    _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert "worker process" not in errors
    assert workspace.json("status", job)["begun"] == 1


def test_a_worker_killed_from_outside_costs_one_step(golden, workspace):
    job = workspace.write_job(TEN_IMAGES)
    process = workspace.start("run", job, "--events", "events.jsonl")
    wait_for(process, "[2/10]")
    child_of(process.pid).kill()
    _, errors = process.communicate()
    assert process.returncode == 0
    assert "SIGKILL, most likely for want of memory" in errors
    assert workspace.results() == golden


def test_no_process_is_left_after_a_run_that_was_killed(workspace):
    job = workspace.write_job('[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 200\n')
    process = workspace.start("run", job)
    wait_for(process, "step 2/200")
    child = child_of(process.pid)
    process.kill()
    process.communicate()
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
