"""Four boards on loopback make one job: the same pictures as one machine's, each once."""

import json
import re

import pytest
from boards import JOB, fleet_in
from command import Workspace, show_on_terminal

NAMES = ("ada", "bela", "cleo", "dora")


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The results of one machine."""
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(JOB.format(seeds=6)))
    return workspace.results()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Four boards with a folder each, and the 24 images that they made."""
    with fleet_in(tmp_path_factory.mktemp("fleet")) as fleet:
        fleet.start_scheduler()
        fleet.start_boards(*NAMES)
        fleet.ended = fleet.run(fleet.driver.write_job(JOB.format(seeds=6)))
        yield fleet


def test_the_pictures_are_those_of_one_machine(fleet, golden):
    assert fleet.ended.stdout.startswith("24 done, 0 done before, 0 failed, 0 waiting")
    assert fleet.driver.results() == golden


def test_each_image_is_made_once_and_says_where(fleet):
    assert len({event["stem"] for event in fleet.told("ImageDone")}) == len(fleet.told("ImageDone")) == 24
    assert not any(fleet.repeated_steps().values())
    boards = fleet.boards_of()
    assert sum(boards.values()) == 24
    assert set(boards) == set(NAMES)
    began = {event["stem"]: event["board"] for event in fleet.told("ImageStarted")}
    for stem, manifest in fleet.driver.manifests().items():
        (run,) = manifest["runs"]
        assert (run["board"], run["first_step"], run["last_step"]) == (began[stem], 1, 6)


def test_a_board_never_makes_two_at_a_time(fleet):
    """Between an image's first step on a board and its end no other begins there."""
    at_hand = {}
    for line in fleet.events.read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "ImageStarted":
            assert event["board"] not in at_hand.values()
            at_hand[event["stem"]] = event["board"]
        elif event["event"] == "StepDone":
            assert at_hand[event["stem"]] == event["board"]
        elif event["event"] == "ImageDone":
            del at_hand[event["stem"]]


def test_progress_names_the_board_and_the_end_of_the_batch(fleet):
    lines = fleet.ended.stderr.splitlines()
    assert {f"note: {name}: ready, keeps checkpoints on storage of its own" for name in NAMES} <= set(lines)
    assert any(line.startswith("[1/24] ") and line.split(" on ")[-1] in NAMES for line in lines)
    last = [event for event in fleet.told("StepDone") if event["batch_seconds_left"] is not None][-1]
    assert 0 <= last["batch_seconds_left"] < 60


def test_a_terminal_shows_a_bar_for_each_board(fleet):
    """A second job on the same boards, seen through a terminal."""
    job = fleet.driver.write_job(JOB.format(seeds=2), "seen")
    shown = show_on_terminal(fleet.driver, "run", job, "--dask", fleet.address)
    lines = [line for line in re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)) if line]
    for name in NAMES:
        assert any(re.match(rf"{name}: (a-red-house|an-owl).* [0-6]/6 ", line) for line in lines), lines[-20:]
    assert any(re.match(r"batch .*8/8", line) for line in lines)


def test_two_jobs_at_once_share_the_boards(fleet, golden):
    """Two drivers, each with a job of its own; what a board does for the one, the other waits for."""
    text = JOB.format(seeds=2)
    first = fleet.start(fleet.driver.write_job(text, "first"))
    ended = fleet.run(fleet.driver.write_job(text, "second"))
    assert first.wait(300) == 0, fleet.log("driver")
    assert ended.stdout.startswith("8 done")
    wanted = {stem: golden[stem] for stem in fleet.driver.results("second")}
    assert fleet.driver.results("first") == fleet.driver.results("second") == wanted
    assert len(wanted) == 8


def test_boards_keep_nothing_of_images_that_are_recorded(fleet):
    for name in NAMES:
        assert list((fleet.folder / name / "outputs/.fleet" / name / "checkpoints").iterdir()) == []
    assert not (fleet.driver.folder / "outputs/job/.checkpoints").exists()


def test_the_same_command_again_has_nothing_to_do(fleet):
    job = fleet.driver.write_job(JOB.format(seeds=6))
    assert fleet.run(job).stdout.startswith("0 done, 24 done before, 0 failed, 0 waiting")
    fleet.driver.run("verify", job)


def test_audit_names_the_board(fleet):
    picture = fleet.driver.pictures()[0]
    assert "board" in fleet.driver.run("audit", str(picture)).stdout
