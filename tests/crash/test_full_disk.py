"""A disk that fills up or turns read-only under a job, on real small file systems, and a clock that is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import Workspace, wait_for
from small_disk import SmallDisk

from anima_batch.files import lock_folder
from crash.jobs import JOBS, make_tiny_set, make_workspace
from crash.oracle import Acknowledged, Golden, judge, recover

JOB = "jobs/job.toml"
LONG = JOBS["short"].replace("steps = 3", "steps = 60")
LEVELS = 30
MOST_BLOCKS = 40  # with these left, all fits
BLOCK_BYTES = 4096

Results = dict[str, tuple[str, str, list[str]]]


@pytest.fixture(scope="module")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_set(tmp_path_factory.mktemp("set"))


@dataclass(frozen=True)
class Finished:
    """A job that was left alone: its results, and the folder of its prompt embeddings."""

    results: Results
    golden: Golden
    encoded: Path


def finish(folder: Path, tiny_set: Path, job: str) -> Finished:
    workspace = make_workspace(folder, tiny_set, job)
    workspace.run("run", JOB)
    return Finished(workspace.results(), Golden.read(folder / "manifests/job"), folder / "outputs/.conditioning")


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory, tiny_set: Path) -> Finished:
    """Two images with history files."""
    return finish(tmp_path_factory.mktemp("golden") / "w", tiny_set, JOBS["forecasts"])


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory, tiny_set: Path) -> Finished:
    """Two images of many steps."""
    return finish(tmp_path_factory.mktemp("golden") / "w", tiny_set, LONG)


def run_while_full(workspace: Workspace, disk: SmallDisk, leave: int) -> tuple[int, str]:
    """(exit code, stderr) of the job on a disk that is filled up after its check of the room, before its first file.

    The run is held by the lock of the folder of prompt embeddings, which all jobs share.
    """
    shared = workspace.folder / "outputs/.conditioning"
    shared.mkdir(parents=True, exist_ok=True)
    with lock_folder(shared):
        process = workspace.start("run", JOB)
        wait_for(process, "[1/2]")
        disk.fill(leave=leave)
    _, errors = process.communicate()
    assert "Traceback" not in errors, errors
    return process.returncode, errors


def assert_whole(workspace: Workspace, finished: Finished) -> None:
    """Nothing on disk is torn or other than it was to be, and no half-written file takes room."""
    faults = judge(finished.golden, Acknowledged(), recover(workspace.folder / JOB, workspace.folder))
    assert faults == ()
    assert not list(workspace.folder.rglob("*.tmp"))


def digests(workspace: Workspace) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workspace.folder / "manifests").rglob("*.json")}


def try_level(disk: SmallDisk, tiny_set: Path, forecasts: Finished, leave: int, *, encoded: bool) -> tuple[int, str]:
    """Run on a disk with so many bytes left, check, free it and finish; the first run's exit code and stderr."""
    workspace = make_workspace(disk.folder / "w", tiny_set, JOBS["forecasts"])
    if encoded:
        shutil.copytree(forecasts.encoded, workspace.folder / "outputs/.conditioning")
    code, errors = run_while_full(workspace, disk, leave)
    assert code == 0 or (code == 5 and "free some space, then run the same command again" in errors), errors
    assert_whole(workspace, forecasts)
    before = digests(workspace)
    disk.empty()
    workspace.run("run", JOB)
    assert workspace.results() == forecasts.results, f"with {leave} bytes left"
    assert before.items() <= digests(workspace).items(), f"with {leave} bytes left: a finished image was made again"
    assert not (workspace.folder / "outputs/job/.reserve").exists()
    shutil.rmtree(workspace.folder)
    return code, errors


@pytest.mark.parametrize("small_disk", ["ext4"], indirect=True)
def test_a_disk_that_is_full_before_the_prompts_are_encoded_stops_the_run_and_loses_nothing(
    small_disk: SmallDisk, tiny_set: Path, forecasts: Finished
):
    for blocks in (0, 1, 17, 24):  # the last two: in the second prompt's file
        code, errors = try_level(small_disk, tiny_set, forecasts, blocks * BLOCK_BYTES, encoded=False)
        assert code == 5
        assert ".embeds: No space left on device" in errors


@pytest.mark.parametrize("small_disk", ["ext4"], indirect=True)
def test_a_disk_that_is_full_at_any_write_loses_nothing_and_the_same_command_finishes(
    small_disk: SmallDisk, tiny_set: Path, forecasts: Finished
):
    codes, told = [], ""
    for level in range(LEVELS):
        blocks = level * MOST_BLOCKS // (LEVELS - 1)
        code, errors = try_level(small_disk, tiny_set, forecasts, blocks * BLOCK_BYTES, encoded=True)
        codes.append(code)
        told += errors
    assert codes[0] == 5
    assert codes[-1] == 0
    assert "No space" not in errors
    for written in ("this start is not counted", "is not saved, the image goes on: "):
        assert written in told, f"no level left a disk that was full at {written}"


@pytest.fixture
def running(small_disk: SmallDisk, tiny_set: Path) -> Iterator[tuple[Workspace, subprocess.Popen[str]]]:
    """A job of many steps on the small disk, after its third."""
    workspace = make_workspace(small_disk.folder / "w", tiny_set, LONG)
    process = workspace.start("run", JOB)
    wait_for(process, "step 3/60")
    yield workspace, process
    process.kill()
    process.communicate()


def test_a_disk_that_is_full_for_a_while_costs_no_step(
    small_disk: SmallDisk, running: tuple[Workspace, subprocess.Popen[str]], long: Finished
):
    workspace, process = running
    small_disk.fill()
    wait_for(process, "is not saved, the image goes on: ")
    wait_for(process, "/60, not saved: ")
    small_disk.empty()
    process.communicate()
    assert process.returncode == 0
    assert workspace.results() == long.results
    warned = [manifest["warnings"] for manifest in workspace.manifests().values()]
    assert any("the disk was full" in warning for warnings in warned for warning in warnings)


def test_a_disk_that_turns_read_only_stops_the_run_and_keeps_everything(
    small_disk: SmallDisk, running: tuple[Workspace, subprocess.Popen[str]], long: Finished
):
    workspace, process = running
    small_disk.remount("ro")
    _, errors = process.communicate()
    assert process.returncode == 5
    assert "Read-only file system: remount it writable, then run the same command again" in errors
    assert "Traceback" not in errors
    assert_whole(workspace, long)
    status = workspace.json("status", JOB)
    assert status["begun"] + status["done"] >= 1
    assert "Read-only file system" in workspace.run("run", JOB, check=5).stderr
    before = digests(workspace)
    small_disk.remount("rw")
    workspace.run("run", JOB)
    assert workspace.results() == long.results
    assert before.items() <= digests(workspace).items()


@pytest.mark.parametrize("small_disk", ["tmpfs"], indirect=True)
def test_a_clock_that_stands_in_2017_or_far_ahead_changes_nothing(
    running: tuple[Workspace, subprocess.Popen[str]], long: Finished
):
    """Every file's times, as a board without a battery leaves them: the newer ones older, or all in the future."""
    workspace, process = running
    process.kill()
    process.communicate()
    paths = sorted(path for name in ("outputs", "manifests") for path in (workspace.folder / name).rglob("*"))
    for number, path in enumerate(paths):
        seconds = (1_483_228_800, 4_102_444_800)[number % 2] - number
        os.utime(path, (seconds, seconds), follow_symlinks=False)
    from_step = workspace.json("plan", JOB)["images"][0]["from_step"]
    assert from_step >= 3
    assert f"goes on after step {from_step}" in workspace.run("run", JOB).stderr
    assert workspace.results() == long.results
    assert workspace.run("run", JOB).stdout.startswith("0 done, 2 done before")
