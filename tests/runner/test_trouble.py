"""What a night can bring: files that change or fill up under a run, a terminal that goes away, other runs beside it."""

import json
import os
import re
import shutil
import signal
import subprocess

import pytest
from command import COMMAND, ENVIRONMENT, Workspace, wait_for
from PIL import Image

from anima_batch.model_set import find_model_set

LONG = '[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 200\n'
SHORT = '[defaults]\nprompt = "a boat"\nsteps = 2\n[matrix]\nseed = [1, 2]\n'


@pytest.fixture
def own_set(workspace):
    """A copy of the built-in set in the workspace, named `mine`."""
    folder = workspace.folder / "models/mine"
    shutil.copytree(find_model_set("picture-book", workspace.folder).folder, folder)
    return folder


def read_events(workspace):
    return [json.loads(line) for line in (workspace.folder / "events.jsonl").read_text().splitlines()]


def test_a_model_file_replaced_during_a_run_stops_it_before_the_step_is_kept(workspace, own_set):
    job = workspace.write_job(f'model_set = "mine"\n[run]\nstaging = "on-demand"\n{LONG}')
    process = workspace.start("run", job)
    wait_for(process, "step 2/200")
    replaced = own_set / "transformer/01.mlp.onnx"
    kept = replaced.read_bytes()
    shutil.copy(own_set / "transformer/02.mlp.onnx", own_set / "new")
    (own_set / "new").rename(replaced)
    _, errors = process.communicate()
    assert process.returncode == 4
    assert "transformer.01.mlp: " in errors
    assert "changed while the job ran" in errors
    replaced.write_bytes(kept)
    assert workspace.json("status", job)["begun"] == 1
    assert not (workspace.folder / "manifests/job").exists() or not workspace.manifests()


def test_a_model_file_that_was_only_touched_stops_nothing(workspace, own_set):
    job = workspace.write_job('model_set = "mine"\n[defaults]\nprompt = "a"\nseed = 1\nsteps = 30\n')
    process = workspace.start("run", job)
    wait_for(process, "step 2/30")
    os.utime(own_set / "transformer/01.mlp.onnx")
    process.communicate()
    assert process.returncode == 0


def test_a_failed_decode_keeps_every_step_for_the_retry(workspace, own_set):
    (own_set / "vae/decoder.onnx").write_bytes(b"no graph")
    workspace.run("models", "seal", "mine")
    job = workspace.write_job('model_set = "mine"\n[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 5\n')
    workspace.run("run", job, check=1)
    (manifest,) = workspace.manifests().values()
    assert (manifest["error"]["kind"], manifest["error"]["step"]) == ("backend", None)
    assert len(manifest["steps"]) == 5
    workspace.run("run", job, "--retry-failed", "--events", "events.jsonl", check=1)
    events = read_events(workspace)
    assert [event["from_step"] for event in events if event["event"] == "ImageStarted"] == [5]
    assert not [event for event in events if event["event"] == "StepDone"]


def test_two_jobs_with_the_same_prompts_run_beside_each_other(workspace):
    prompts = ", ".join(f'"prompt {number}"' for number in range(12))
    text = f"[defaults]\nseed = 1\nsteps = 1\n[matrix]\nprompt = [{prompts}]\n"
    jobs = [workspace.write_job(text, name) for name in ("one", "two")]
    processes = [workspace.start("run", job) for job in jobs]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert workspace.results("one") == workspace.results("two")


def test_a_run_goes_on_when_nobody_reads_its_progress(workspace):
    job = workspace.write_job(SHORT)
    subprocess.run(
        ["sh", "-c", f'"$@" run {job} 2>&1 >/dev/null | head -1', "sh", *COMMAND],
        cwd=workspace.folder, env=ENVIRONMENT, check=True, capture_output=True,
    )  # fmt: skip
    assert len(workspace.manifests()) == 2


def test_a_run_goes_on_without_stderr_and_with_a_full_event_log(workspace):
    job = workspace.write_job(SHORT)
    command = f'"$@" run {job} --events /dev/full 2>&-'
    subprocess.run(["sh", "-c", command, "sh", *COMMAND], cwd=workspace.folder, env=ENVIRONMENT, check=True)
    assert len(workspace.manifests()) == 2


def test_an_event_log_that_cannot_be_opened_is_a_mistake(workspace):
    job = workspace.write_job(SHORT)
    assert "--events jobs: must be a file" in workspace.run("run", job, "--events", "jobs", check=2).stderr
    assert workspace.pictures() == []


@pytest.mark.parametrize(
    "pin", ['{"schema_version": 1, "drawn": null}', '{"drawn": [-5, 1.5]}', '{"images": [{}]}', "{", "[]", "7"]
)
def test_a_pinned_job_that_is_none_is_a_mistake_and_stays(workspace, pin):
    job = workspace.write_job(SHORT)
    path = workspace.folder / "outputs/job/job.json"
    path.parent.mkdir(parents=True)
    path.write_text(pin)
    assert f"error: {path.relative_to(workspace.folder)}: " in workspace.run("run", job, check=2).stderr
    assert path.read_text() == pin


def test_a_foreign_file_with_an_images_id_in_its_name_changes_nothing(workspace):
    job = workspace.write_job(SHORT)
    workspace.run("run", job)
    for stem in workspace.manifests():
        for name in ("aa", "zz"):
            (workspace.folder / f"manifests/job/{name}-{stem[-12:]}.json").write_text("{}")
    assert workspace.run("run", job).stdout.startswith("0 done, 2 done before")


def test_a_picture_whose_metadata_alone_changed_is_not_made_again(workspace):

    job = workspace.write_job(SHORT)
    workspace.run("run", job)
    picture = workspace.pictures()[0]
    with Image.open(picture) as image:
        image.load()
        image.info.clear()
        image.save(picture)
    assert workspace.run("run", job).stdout.startswith("0 done, 2 done before")
    assert "only metadata changed" in workspace.run("plan", job).stdout
    workspace.run("verify", job, check=3)


def test_a_checkpoint_left_behind_by_a_finished_image_goes_at_the_next_run(workspace):
    job = workspace.write_job(LONG.replace("200", "40"))
    process = workspace.start("run", job)
    wait_for(process, "step 3/40")
    process.kill()
    process.communicate()
    (folder,) = (workspace.folder / "outputs/job/.checkpoints").iterdir()
    shutil.copytree(folder, workspace.folder / "left")
    workspace.run("run", job)
    shutil.copytree(workspace.folder / "left", folder)
    workspace.run("run", job)
    assert not folder.exists()


def test_a_signal_before_the_run_begins_ends_it_quietly(workspace):
    job = workspace.write_job(LONG)
    for seconds in (0.15, 0.3):
        process = workspace.start("plan", job)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert process.returncode in (0, 130, -signal.SIGINT)  # -SIGINT: before Python ran its first line
        assert process.returncode != 130 or errors == ""


def test_a_signal_is_acknowledged_at_once(workspace):
    job = workspace.write_job(LONG)
    process = workspace.start("run", job)
    wait_for(process, "step 2/200")
    process.send_signal(signal.SIGINT)
    wait_for(process, "stopping after this step; a second signal stops at once")
    process.communicate()
    assert process.returncode == 130


def calls_in(trace):
    """How often each system call was made that the trace shows."""
    names = re.findall(r"^\d+ +(\w+)\(.*= 0$", trace.read_text(), re.MULTILINE)
    return {name: names.count(name) for name in names}


def run_under_strace(strace, workspace, job, calls, *options):
    return subprocess.run(
        [strace, "-f", "-qq", "-o", str(workspace.folder / "trace"), "-e", f"trace={calls}", *options,
         *COMMAND, "run", job, "--events", "events.jsonl"],
        cwd=workspace.folder, env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip


def test_a_kill_at_each_rename_and_removal_loses_no_durable_step(workspace, need_tool, tmp_path):
    """The commit order: were the checkpoint dropped before the manifest is durable, one of these would repeat steps."""
    strace = need_tool("strace")
    text = '[defaults]\nprompt = "a boat"\nseed = 1\nsteps = 3\npolicy = "quick"\n[policy.quick]\n'
    text += 'kind = "spectrum"\nwarmup_steps = 2\nstop_fraction = 0.0\n'
    job = workspace.write_job(text)
    ended = run_under_strace(strace, workspace, job, "rename,renameat,renameat2,unlink,unlinkat,rmdir")
    assert ended.returncode == 0
    golden, calls = workspace.results(), calls_in(workspace.folder / "trace")
    assert (
        sum(calls.values()) >= 12
    )  # the pin, two prompts, two histories, three checkpoints, PNG, manifest, and the drop
    for name, number in ((name, number) for name, count in calls.items() for number in range(1, count + 1)):
        killed = Workspace(tmp_path / f"{name}-{number}")
        killed.write_job(text)
        ended = run_under_strace(strace, killed, job, name, "-e", f"inject={name}:signal=SIGKILL:when={number}")
        assert ended.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), f"{name} {number} killed nothing"
        killed.run("run", job, "--events", "events.jsonl")
        assert killed.results() == golden, f"killed at {name} {number}"
        steps = [event["report"]["index"] for event in read_events(killed) if event["event"] == "StepDone"]
        assert len(steps) == len(set(steps)), f"killed at {name} {number}, durable steps were made again: {steps}"
        assert not list((killed.folder / "outputs/job/.checkpoints").iterdir())
