"""Boards, scheduler and driver are lost in the middle of a job: nothing is lost, nothing is made twice."""

import random
import signal
import time

import pytest
from boards import JOB, end, fleet_in, wait_until
from command import Workspace

SMALL = JOB.format(seeds=2)  # 8 images of 6 steps
LONG = SMALL.replace("steps = 6", "steps = 30")


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(SMALL))
    return workspace.results()


@pytest.fixture
def fleet(tmp_path):
    with fleet_in(tmp_path) as fleet:
        yield fleet


def check(fleet, golden, *, repeated):
    """Every image is there once, with the bits of one machine; at most `repeated` steps of any were made again."""
    assert fleet.driver.results() == golden
    done = [event["stem"] for event in fleet.told("ImageDone")]
    assert sorted(done) == sorted(golden)
    assert max(fleet.repeated_steps().values(), default=0) <= repeated
    assert "Traceback" not in (fleet.folder / "driver.log").read_text()
    fleet.driver.run("verify", "jobs/job.toml")


@pytest.fixture(scope="module")
def long_golden(tmp_path_factory):
    workspace = Workspace(tmp_path_factory.mktemp("golden"))
    workspace.run("run", workspace.write_job(LONG))
    return workspace.results()


@pytest.mark.parametrize("shares", [True, False])
def test_boards_that_are_killed_at_random(fleet, long_golden, shares):
    """Five kills; shared storage costs a step of the image at hand, a board's own storage the image."""
    seed = time.time_ns()
    print(f"drawn from seed {seed}")
    drawn = random.Random(seed)
    fleet.start_scheduler()
    names = ["ada", "bela", "cleo"]
    fleet.start_boards(*names, shares=shares)
    driver = fleet.start(fleet.driver.write_job(LONG))
    wait_until(lambda: fleet.count_steps() > 2, "the first steps")
    kills = 0
    while driver.poll() is None and kills < 5:
        time.sleep(drawn.uniform(0.3, 1.5))
        name = drawn.choice(names)
        if driver.poll() is None:
            fleet.kill(name)
            kills += 1
            fleet.start_boards(name, shares=shares)
    assert driver.wait(300) == 0, fleet.log("driver")
    # An image may be hit more than once: each kill costs it a step, or what it had.
    check(fleet, long_golden, repeated=kills * (1 if shares else 30))
    assert kills >= 2


def test_a_board_that_is_lost_on_shared_storage_costs_one_step(fleet, long_golden):
    fleet.start_scheduler()
    fleet.start_boards("ada", "bela", shares=True)
    driver = fleet.start(fleet.driver.write_job(LONG))
    wait_until(lambda: any(e["board"] == "ada" and e["report"]["index"] == 3 for e in fleet.told("StepDone")), "step 3")
    fleet.kill("ada")
    assert driver.wait(300) == 0, fleet.log("driver")
    check(fleet, long_golden, repeated=1)
    (shared,) = [m for m in fleet.driver.manifests().values() if {run["board"] for run in m["runs"]} == {"ada", "bela"}]
    first, second = shared["runs"]
    assert (first["first_step"], first["board"], second["board"], second["last_step"]) == (1, "ada", "bela", 30)
    assert second["first_step"] == first["last_step"] + 1
    assert second["resumed"]


def test_a_scheduler_that_is_lost_is_waited_for(fleet, golden):
    fleet.start_scheduler()
    fleet.start_boards("ada", "bela")
    driver = fleet.start(fleet.driver.write_job(SMALL))
    wait_until(lambda: fleet.count_steps() > 8, "the first steps")
    fleet.kill("scheduler")
    wait_until(lambda: "the scheduler is gone" in fleet.log("driver"), "word of it")
    fleet.start_scheduler()
    assert driver.wait(300) == 0, fleet.log("driver")
    # What a board did before lies on its own storage, and it goes on with that itself.
    check(fleet, golden, repeated=1)
    assert "the scheduler is there again" in fleet.log("driver")


@pytest.mark.parametrize("shares", [True, False])
def test_a_driver_that_is_killed_is_run_again(fleet, golden, shares):
    fleet.start_scheduler()
    fleet.start_boards("ada", "bela", shares=shares)
    job = fleet.driver.write_job(SMALL)
    for _ in range(3):
        before = fleet.count_steps()
        driver = fleet.start(job)
        wait_until(lambda before=before: fleet.count_steps() > before + 4, "steps")
        end(driver)
    driver = fleet.start(job)
    assert driver.wait(300) == 0, fleet.log("driver")
    check(fleet, golden, repeated=3 if shares else 3 * 6)


def test_a_stop_keeps_all_that_is_done(fleet, golden):
    fleet.start_scheduler()
    fleet.start_boards("ada", "bela", shares=True)
    job = fleet.driver.write_job(SMALL)
    driver = fleet.start(job)
    wait_until(lambda: fleet.count_steps() > 8, "steps")
    end(driver, signal.SIGTERM)
    assert driver.returncode == 143
    ended = fleet.driver.run("status", job)
    assert "begun" in ended.stdout
    assert fleet.start(job).wait(300) == 0
    check(fleet, golden, repeated=1)


@pytest.mark.parametrize("shares", [True, False])
def test_a_board_that_sleeps_and_wakes_late_cannot_overwrite(fleet, long_golden, shares):
    """The scheduler takes it for lost; its image is made by another; then it wakes in the middle of a step."""
    fleet.start_scheduler(ttl="4s")
    fleet.start_boards("ada", "bela", shares=shares)
    driver = fleet.start(fleet.driver.write_job(LONG))
    wait_until(lambda: any(e["board"] == "ada" and e["report"]["index"] == 2 for e in fleet.told("StepDone")), "step 2")
    fleet.pause("ada")
    stem = next(e["stem"] for e in reversed(fleet.told("ImageStarted")) if e["board"] == "ada")
    wait_until(lambda: any(e["stem"] == stem for e in fleet.told("ImageDone")), "its image, made by the other board")
    before = {path: path.read_bytes() for path in (fleet.driver.folder / "manifests/job").glob("*.json")}
    fleet.resume("ada")
    assert driver.wait(300) == 0, fleet.log("driver")
    check(fleet, long_golden, repeated=1 if shares else 30)
    for path, content in before.items():
        assert path.read_bytes() == content, "a picture that was recorded was recorded again"
    boards = [run["board"] for run in fleet.driver.manifests()[stem]["runs"]]
    assert boards == (["ada", "bela"] if shares else ["bela"])


def test_a_board_that_gives_no_sign_loses_its_image_before_the_scheduler_misses_it(fleet, long_golden):
    """Its steps hang while Dask still hears from it; what the board allows itself is what it is allowed."""
    fleet.start_scheduler()
    fleet.start_boards("ada", "bela", shares=True)
    # A first forecast, a first decoding may take many minutes: nothing is known of them. So all is in full.
    full = LONG.replace(', "spectrum"', "") + "[run]\ndeadline_seconds = 1\n"
    driver = fleet.start(fleet.driver.write_job(full))
    wait_until(lambda: last_step(fleet, "ada")[1] in range(5, 15), "a step in the middle of an image")
    stem, _ = last_step(fleet, "ada")
    fleet.pause("ada")
    wait_until(lambda: "ada: no sign for" in fleet.log("driver"), "word of it")
    wait_until(lambda: any(event["stem"] == stem for event in fleet.told("ImageDone")), "its image")
    fleet.resume("ada")
    assert driver.wait(300) == 0, fleet.log("driver")
    check(fleet, {stem: made for stem, made in long_golden.items() if "-full-" in stem}, repeated=1)


def last_step(fleet, board):
    """Stem and number of the newest step of a board."""
    steps = [event for event in fleet.told("StepDone") if event["board"] == board]
    return (steps[-1]["stem"], steps[-1]["report"]["index"]) if steps else ("", 0)
