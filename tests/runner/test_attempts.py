"""Images that end the whole run again and again are given up; power cuts never count."""

import json
import signal
import time

import pytest
from command import Workspace, wait_for

from anima_batch.environment import read_boot_id
from anima_batch.store import begin_attempt, read_attempts

JOB = """
[run]
threads = 1
[defaults]
prompt = "a boat"
steps = 3
[matrix]
seed = [1, 2, 3]
"""


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The job's results without a fault."""
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(JOB))
    return workspace.results()


def kill_at_start(workspace, job, count):
    """SIGKILL for the whole run while the first step of image 2 hangs, which is its `count`-th start."""
    workspace.make_faults({"kind": "hang", "seed": 2, "step": 1})
    process = workspace.start("run", job)
    wait_for(process, "[2/3]" if not workspace.manifests() else "[1/2]")
    while not (
        found := [path.parent for path in find_attempts(workspace) if read_attempts(path.parent).count == count]
    ):
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    return found[0]


def find_attempts(workspace):
    return (workspace.folder / "outputs/job/.checkpoints").glob("*/attempts")


def test_three_runs_killed_without_a_new_step_give_the_image_up_and_the_batch_goes_on(golden, workspace):
    job = workspace.write_job(JOB)
    for count in (1, 2, 3):
        kill_at_start(workspace, job, count)
    workspace.make_faults()
    ended = workspace.run("run", job, check=1)
    assert "1 done, 1 done before, 1 failed" in ended.stdout
    (failed,) = [manifest for manifest in workspace.manifests().values() if manifest["status"] == "failed"]
    assert failed["request"]["seed"] == 2
    assert failed["error"]["kind"] == "quarantined"
    assert "3 starts in a row ended without a new step after step 0" in failed["error"]["message"]
    assert "0 done, 2 done before, 1 failed" in workspace.run("run", job, check=1).stdout
    workspace.run("run", job, "--retry-failed")
    assert workspace.results() == golden
    assert not list((workspace.folder / "outputs/job/.checkpoints").iterdir())


def test_a_new_step_starts_the_count_anew_and_is_in_the_manifest_of_an_image_that_is_given_up(workspace):
    job = workspace.write_job(JOB)
    for count in (1, 2):
        folder = kill_at_start(workspace, job, count)
    for count in (3, 1, 2):  # the first of them is counted before its step
        workspace.make_faults({"kind": "hang", "seed": 2, "step": 2})
        process = workspace.start("run", job)
        wait_for(process, "step 1/3" if count == 3 else "goes on after step 1")
        while read_attempts(folder).count != count:
            time.sleep(0.01)
        process.kill()
        process.communicate()
    begin_attempt(folder, 1, read_boot_id())
    workspace.make_faults()
    workspace.run("run", job, check=1)
    (failed,) = [manifest for manifest in workspace.manifests().values() if manifest["status"] == "failed"]
    assert [step["index"] for step in failed["steps"]] == [1]
    workspace.run("run", job, "--retry-failed", "--events", "events.jsonl")
    events = [json.loads(line) for line in (workspace.folder / "events.jsonl").read_text().splitlines()]
    assert [event["from_step"] for event in events if event["event"] == "ImageStarted"] == [1]


def test_power_cuts_alone_never_give_an_image_up(golden, workspace):
    job = workspace.write_job(JOB)
    folder = kill_at_start(workspace, job, 1)
    for cut in range(10):
        begin_attempt(folder, 0, f"boot {cut}")
    workspace.make_faults()
    workspace.run("run", job)
    assert workspace.results() == golden


def test_a_clean_stop_forgets_the_starts(workspace):
    job = workspace.write_job(JOB)
    folder = kill_at_start(workspace, job, 1)
    begin_attempt(folder, 0, read_boot_id())
    workspace.make_faults({"kind": "slow", "seed": 2, "step": 2, "amount": 2})
    process = workspace.start("run", job)
    wait_for(process, "step 1/3")
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    assert read_attempts(folder).count == 0


def test_deaths_of_the_worker_count_with_those_of_the_run(workspace):
    job = workspace.write_job(JOB)
    for count in (1, 2):
        kill_at_start(workspace, job, count)
    workspace.make_faults({"kind": "segfault", "seed": 2, "step": 1})
    ended = workspace.run("run", job, check=1)
    (failed,) = [manifest for manifest in workspace.manifests().values() if manifest["status"] == "failed"]
    assert failed["error"]["kind"] == "worker"
    assert "again in a fresh process" not in ended.stderr
