"""A board that cannot make the job's pictures is left out with a line, and the job ends without it."""

import shutil
import signal

import pytest
from boards import JOB, end, fleet_in, wait_until
from small_disk import mounted_disk

SMALL = JOB.format(seeds=1)  # 4 images


@pytest.fixture
def fleet(tmp_path):
    with fleet_in(tmp_path) as fleet:
        fleet.start_scheduler()
        yield fleet


def make_version(folder, version):
    """A folder for PYTHONPATH with which every process says that its NumPy has another version."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import numpy\nnumpy.__version__ = {version!r}\n")
    return f"{folder}:"


def left_out(ended):
    return [line for line in ended.stderr.splitlines() if ": left out: " in line]


def test_a_board_without_the_model_set(fleet):
    fleet.driver.make_own_set()
    fleet.start_boards("ada", "bela")
    shutil.copytree(fleet.driver.folder / "models", fleet.folder / "bela/models")
    ended = fleet.run(fleet.driver.write_job(f'model_set = "mine"\n{SMALL}'))
    assert ended.stdout.startswith("4 done")
    (line,) = left_out(ended)
    assert "note: ada: left out: " in line
    assert "must hold the model set mine with digest" in line
    assert set(fleet.boards_of()) == {"bela"}


def test_a_board_whose_model_set_was_damaged(fleet):
    fleet.driver.make_own_set()
    fleet.start_boards("ada", "bela")
    for name in ("ada", "bela"):
        shutil.copytree(fleet.driver.folder / "models", fleet.folder / name / "models")
    graph = next((fleet.folder / "ada/models/mine").rglob("*mlp*.onnx"))
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    ended = fleet.run(fleet.driver.write_job(f'model_set = "mine"\n{SMALL}'))
    assert ended.stdout.startswith("4 done")
    (line,) = left_out(ended)
    assert "note: ada: left out: " in line
    assert "is not what its digests say" in line
    assert set(fleet.boards_of()) == {"bela"}


def test_a_board_with_another_runtime_than_the_others(fleet, tmp_path):
    path = fleet.driver.environment["PYTHONPATH"]
    fleet.start_boards("ada", PYTHONPATH=make_version(tmp_path / "other", "2.99.0") + path)
    fleet.start_boards("bela", "cleo")
    job = fleet.driver.write_job(SMALL)
    ended = fleet.run(job)
    assert ended.stdout.startswith("4 done")
    (line,) = left_out(ended)
    assert "note: ada: left out: another environment than the others' (numpy: " in line
    assert line.endswith("-> 2.99.0): make them equal, or run with --accept-environment")
    assert "ada" not in fleet.boards_of()


def test_a_mixed_environment_is_said_where_it_is_accepted(fleet, tmp_path):
    path = fleet.driver.environment["PYTHONPATH"]
    fleet.start_boards("ada", PYTHONPATH=make_version(tmp_path / "other", "2.99.0") + path)
    fleet.start_boards("bela", "cleo")
    ended = fleet.run(fleet.driver.write_job(JOB.format(seeds=3)), "--accept-environment")
    assert ended.stdout.startswith("12 done")
    assert left_out(ended) == []
    assert "note: ada: makes its images in another environment (numpy: " in ended.stderr
    for manifest in fleet.driver.manifests().values():
        other = manifest["runs"][0]["board"] == "ada"
        assert (manifest["environment"]["numpy"] == "2.99.0") is other
    assert set(fleet.boards_of()) == {"ada", "bela", "cleo"}


def test_an_image_goes_on_where_its_environment_is(fleet, tmp_path):
    """Begun on one machine with another version: no board has that, so the job ends with what to do."""
    job = fleet.driver.write_job(SMALL)
    here = dict(fleet.driver.environment)
    fleet.driver.environment["PYTHONPATH"] = make_version(tmp_path / "other", "2.99.0") + here["PYTHONPATH"]
    process = fleet.driver.start("run", job)
    for line in process.stderr:
        if "step 2/6" in line:
            process.terminate()
    process.communicate()
    fleet.driver.environment = here
    fleet.start_boards("ada", shares=True)
    ended = fleet.run(job, check=4)
    assert "begun in another environment than any board's (numpy: 2.99.0 -> " in ended.stderr
    assert "or restart it with --accept-environment" in ended.stderr
    assert len(fleet.driver.manifests()) == 3  # the others are made
    assert fleet.run(job, "--accept-environment").stdout.startswith("1 done, 3 done before")


def test_what_a_board_began_in_another_environment_does_not_leave_it_out(fleet, tmp_path):
    """Its own storage holds steps of its old version: all else is made, and what it began is said at the end."""
    path = fleet.driver.environment["PYTHONPATH"]
    fleet.start_boards("ada", PYTHONPATH=make_version(tmp_path / "other", "2.99.0") + path)
    job = fleet.driver.write_job(SMALL.replace("steps = 6", "steps = 40"))
    driver = fleet.start(job)
    wait_until(lambda: fleet.count_steps() > 3, "steps")
    end(driver, signal.SIGTERM)
    fleet.kill("ada")
    fleet.start_boards("ada")
    ended = fleet.run(job, check=4)
    assert left_out(ended) == []
    assert "begun in another environment than any board's (numpy: 2.99.0 -> " in ended.stderr
    assert len(fleet.driver.manifests()) == 3
    assert fleet.run(job, "--accept-environment").stdout.startswith("1 done, 3 done before")


def test_a_board_whose_disk_is_full(fleet, tmp_path, need_tool):
    with mounted_disk("tmpfs", tmp_path, "mkfs.ext4") as disk:
        (fleet.folder / "ada").symlink_to(disk.folder)
        fleet.start_boards("ada")
        fleet.start_boards("bela")
        disk.fill(leave=1 << 14)
        ended = fleet.run(fleet.driver.write_job(JOB.format(seeds=2)))
        fleet.kill("ada")
    assert ended.stdout.startswith("8 done")
    (line,) = left_out(ended)
    assert line.startswith("note: ada: left out: ")
    assert "No space left on device" in line or "MB free" in line
    assert set(fleet.boards_of()) == {"bela"}


def test_no_board_that_can_make_it(fleet):
    fleet.driver.make_own_set()
    fleet.start_boards("ada")
    ended = fleet.run(fleet.driver.write_job(f'model_set = "mine"\n{SMALL}'), check=4)
    assert "error: ada: " in ended.stderr
    assert "error: fleet: no board can make the 4 images that wait" in ended.stderr


def test_an_image_that_fails_on_one_board_is_made_on_another(fleet):
    """And a board on which two failed that others could make gets no more."""
    faults = '[{"kind": "error_code", "step": 2}]'
    fleet.start_boards("ada", ANIMA_BATCH_FAULTS=faults)
    fleet.start_boards("bela")
    ended = fleet.run(fleet.driver.write_job(JOB.format(seeds=3)))
    assert ended.stdout.startswith("12 done, 0 done before, 0 failed")
    assert (
        2 <= ended.stderr.count(": tried on another board") < 6
    )  # those on their way when the second is made elsewhere
    (line,) = left_out(ended)
    assert line == "note: ada: left out: 2 images failed there and were made elsewhere: look at its NPU"


def test_an_image_that_fails_on_two_boards_has_failed(fleet):
    faults = '[{"kind": "nan", "seed": 1, "step": 2}]'
    fleet.start_boards("ada", "bela", "cleo", ANIMA_BATCH_FAULTS=faults)
    ended = fleet.run(fleet.driver.write_job(JOB.format(seeds=2)), check=1)
    assert ended.stdout.startswith("4 done, 0 done before, 4 failed")
    assert left_out(ended) == []
    failed = [manifest for manifest in fleet.driver.manifests().values() if manifest["status"] == "failed"]
    assert [(m["request"]["seed"], m["error"]["kind"], m["error"]["step"]) for m in failed] == [
        (1, "non_finite", 2)
    ] * 4


def test_kept_latents_are_refused(fleet):
    ended = fleet.run(fleet.driver.write_job(SMALL), "--keep-latents", check=2)
    assert "run.keep_latents: must be false with --dask" in ended.stderr


def test_a_scheduler_without_boards_is_waited_at(fleet):
    driver = fleet.start(fleet.driver.write_job(SMALL))
    line = "no board is there: start `anima-batch fleet-worker` on one; waiting"
    wait_until(lambda: line in fleet.log("driver"), "the line")
    fleet.start_boards("ada")
    assert driver.wait(300) == 0, fleet.log("driver")


def test_two_boards_of_one_name(fleet):
    fleet.start_boards("ada")
    ended = fleet.driver.run(
        "fleet-worker", fleet.address, "--workspace", str(fleet.folder / "ada"), "--name", "ada", check=6
    )
    assert "outputs/.fleet/ada: held by pid" in ended.stderr


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "a" * 64])
def test_a_name_is_a_file_name(fleet, name):
    ended = fleet.driver.run("fleet-worker", fleet.address, f"--name={name}", check=2)
    assert "--name: must be letters, digits" in ended.stderr
