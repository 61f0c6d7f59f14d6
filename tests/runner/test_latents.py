"""Latents that a job asks to keep: all of them after a kill too, and never worth more than the picture."""

import pytest
from command import Workspace, wait_for
from small_disk import SmallDisk

from anima_batch.store import read_latents

STEPS = 6
JOB = f"[run]\nthreads = 1\nkeep_latents = true\n[defaults]\nprompt = 'a'\nseed = 3\nsteps = {STEPS}\n"


def kept(workspace):
    (manifest,) = workspace.manifests().values()
    folder = workspace.folder / "outputs/job/.latents" / manifest["request_id"][:12]
    steps = manifest["steps"]
    return [step["index"] for step in steps if read_latents(folder, step["index"], step["latents_xxh3"]) is not None]


def test_after_a_kill_the_latents_of_every_step_are_there(workspace):
    job = workspace.write_job(JOB)
    process = workspace.start("run", job)
    wait_for(process, "step 3/")
    process.kill()
    process.communicate()
    workspace.run("run", job)
    assert kept(workspace) == list(range(1, STEPS + 1))


def test_without_the_key_none_are_kept(workspace):
    workspace.run("run", workspace.write_job(JOB), "--no-keep-latents")
    assert not (workspace.folder / "outputs/job/.latents").exists()


@pytest.mark.parametrize("small_disk", ["tmpfs"], indirect=True)
def test_a_full_disk_costs_latents_and_no_picture(workspace: Workspace, small_disk: SmallDisk):
    folder = workspace.folder / "outputs/job"
    folder.mkdir(parents=True)
    (folder / ".latents").symlink_to(small_disk.folder)
    small_disk.fill(leave=2 * 24_576)  # two steps: 16 KiB of latents, a header, a folder
    told = workspace.run("run", workspace.write_job(JOB)).stderr
    assert told.count("are not kept: ") == 1
    assert len(workspace.pictures()) == 1
    assert 0 < len(kept(workspace)) < STEPS
