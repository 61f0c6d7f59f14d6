"""The ETA of a plan before there are times: simulated where a timing table is known, and said to be."""

import json

import pytest

from anima_batch.batch import open_batch
from anima_batch.batch.outlook import choose_staging, measured_table_path, simulated_estimate
from anima_batch.board import Choice, load_table, simulate
from anima_batch.job import RunSpec
from anima_batch.plan import Work, work_left

JOB = """
backend = "{backend}"
[run]
staging = "on-demand"
interleave = false
[defaults]
prompt = "a boat"
steps = 2
[matrix]
seed = ["1..3"]
"""
LIFECYCLE = 6 / 28 * 31.71  # of the built-in set's six blocks, with the board's seconds


def write_table(workspace, job, backend="onnx"):
    """A table measured with the job's model set, in which a step of 128x128 takes more than 4,500 seconds."""
    batch = open_batch(workspace.folder / job, workspace.folder, draw=False)
    path = measured_table_path(batch.workspace, batch.model_set.digest, backend)
    path.parent.mkdir(parents=True)
    changes = {"name": "here", "end_seconds": 16 * 4500.0, "decode_seconds": None}
    table = load_table("rock-5c").model_copy(update=changes)
    path.write_text(table.model_dump_json())
    return path


def test_a_board_that_is_named_gives_the_eta_and_the_plan_says_that_it_is_simulated(workspace):
    job = workspace.write_job(JOB.format(backend="auto"))
    assert workspace.json("plan", job)["simulated"] is False
    plan = workspace.json("plan", job, "--board", "rock-5c")
    assert plan["simulated"] is True
    decode = 155.04 * 64 / 1024
    assert 3 * (2 * LIFECYCLE + decode) < plan["estimated_seconds"] < 3 * (2 * LIFECYCLE * 1.3 + decode)
    assert plan["images"][0]["estimated_seconds"] == pytest.approx(plan["estimated_seconds"] / 3)
    assert "(simulated)" in workspace.run("plan", job, "--board", "rock-5c").stdout


def test_an_npus_job_is_planned_with_the_published_board(workspace):
    job = workspace.write_job(JOB.format(backend="rknn"))
    assert workspace.json("plan", job) == workspace.json("plan", job, "--board", "rock-5c")


def test_an_unknown_board_is_one_line_and_exit_code_2(workspace):
    ended = workspace.run("plan", workspace.write_job(JOB.format(backend="auto")), "--board", "rock-6", check=2)
    assert ended.stderr.startswith("error: rock-6: a timing table must be one of rock-5c, or a file")
    assert ended.stdout == ""


def test_a_measured_table_gives_the_eta_until_two_images_are_done(workspace):
    job = workspace.write_job(JOB.format(backend="auto"))
    write_table(workspace, job)
    assert workspace.json("plan", job)["estimated_seconds"] > 6 * 4500
    workspace.run("run", job, "--limit", "1")
    plan = workspace.json("plan", job)
    assert plan["simulated"] is True
    assert plan["estimated_seconds"] > 4 * 4500
    workspace.run("run", job, "--limit", "1")
    plan = workspace.json("plan", job)
    assert plan["simulated"] is False
    assert 0 < plan["estimated_seconds"] < 1000


def test_a_broken_measured_table_is_a_warning_of_the_plan_and_stops_nothing(workspace):
    job = workspace.write_job(JOB.format(backend="auto"))
    path = write_table(workspace, job)
    path.write_text("{")
    ended = workspace.run("plan", job, "--json")
    assert f"warning: {path.relative_to(workspace.folder)}: a timing table must be TOML or JSON" in ended.stderr
    plan = json.loads(ended.stdout)
    assert (plan["simulated"], plan["estimated_seconds"], len(plan["warnings"])) == (False, None, 1)
    workspace.run("run", job, "--limit", "1")


@pytest.fixture
def batch(workspace):
    job = workspace.write_job(JOB.format(backend="auto"))
    return open_batch(workspace.folder / job, workspace.folder, draw=False)


def test_one_pass_and_two_passes_count_as_simulated_and_forecasts_with_the_tables_seconds(batch):
    table = load_table("rock-5c").model_copy(update={"forecast_seconds": 8.0, "encode_seconds": 5.0})
    estimate, scaled = simulated_estimate(batch, table), table.scale(6, 64)
    one, two = (simulate(scaled, [n] * 3, Choice("on-demand")).computed_step_seconds for n in (1, 2))
    assert estimate(Work(128 * 128, passes=1, computed=1)) == pytest.approx(one)
    assert estimate(work_left(128 * 128, (2, 0, 1, 2, 0), 0, encodes=True)) == pytest.approx(
        2 * two + one + 2 * 8.0 / 16 + 155.04 / 16 + 5.0
    )


def test_more_pixels_take_longer_in_proportion_but_for_the_sessions(batch):
    estimate = simulated_estimate(batch, load_table("rock-5c"))
    small, large = (estimate(Work(pixels, passes=2, computed=1)) for pixels in (1 << 18, 1 << 20))
    assert small == pytest.approx(120.4 * 6 / 28, rel=0.01)
    assert large == pytest.approx(4 * small - 3 * LIFECYCLE, rel=0.01)


@pytest.mark.parametrize(
    ("run", "graph_bytes", "choice"),
    [
        (RunSpec(), 4 << 30, Choice("ahead", interleave=True)),
        (RunSpec(), 9 << 20, Choice("resident", interleave=True)),
        (RunSpec(staging="pinned", pinned=3, interleave=False), 4 << 30, Choice("pinned", pinned=3)),
        (RunSpec(core_mask="0+1"), 4 << 30, Choice("ahead", interleave=True, cores=2)),
        (RunSpec(core_mask="1"), 4 << 30, Choice("ahead", interleave=True)),
    ],
)
def test_the_jobs_run_table_is_what_is_simulated(run, graph_bytes, choice):
    assert choose_staging(run, load_table("rock-5c"), graph_bytes) == choice
