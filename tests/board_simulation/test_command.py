"""`bench simulate`, as a user calls it."""

import io

import pytest
from PIL import Image

from anima_batch.board import load_table
from anima_batch.board.picture import WIDTH


def test_all_choices_are_listed_and_marked_as_simulated(workspace):
    shown = workspace.run("bench", "simulate", "--steps", "4").stdout.splitlines()
    assert shown[0].startswith("simulated: Radxa ROCK 5C")
    assert shown[1].split()[0] == "simulated"
    assert shown[2].startswith("on-demand, plain")
    assert any(line.startswith("ahead, interleaved, 2 cores, a context a stream") for line in shown)
    assert next(line for line in shown if line.startswith("resident, plain")).split()[-1] == "no"  # of 84, 16 fit


def test_one_choice_says_what_it_rests_on_and_what_that_costs_if_wrong(workspace):
    found = workspace.json("bench", "simulate", "--policy", "spectrum", "--staging", "ahead", "--cores", "2")
    assert found["simulated"] is True
    assert (found["board"], found["interleave"], found["cores"]) == ("rock-5c", True, 2)
    assert found["computed_steps"] == [1, 2, 3, 4, 6, 8, 11, 14, 18, 19, 20]
    assert 0 < found["denoise_seconds"] <= 560
    assert sum(found["step_seconds"]) == pytest.approx(found["denoise_seconds"])
    assert any("memory bandwidth" in entry["holds"] for entry in found["assumptions"])
    for entry in found["assumptions"]:
        assert entry["denoise_seconds"] - found["denoise_seconds"] == pytest.approx(entry["added_seconds"])
        assert entry["added_seconds"] > 0
    runs = [entry for entry in found["timeline"] if entry["kind"] == "run" and entry["step"] == 2]
    assert len(runs) == 168


def test_on_demand_is_the_published_plain_order_unless_asked_otherwise(workspace):
    plain = workspace.json("bench", "simulate", "--staging", "on-demand", "--steps", "2")
    interleaved = workspace.json("bench", "simulate", "--staging", "on-demand", "--interleave", "--steps", "2")
    assert plain["denoise_seconds"] == pytest.approx(2 * 120.4, rel=0.01)
    assert interleaved["denoise_seconds"] < plain["denoise_seconds"]


def test_a_measured_table_is_read_from_its_file(workspace):
    table = load_table("rock-5c").scale(blocks=2, tokens=64).model_copy(update={"name": "here", "sessions_fit": None})
    (workspace.folder / "here.json").write_text(table.model_dump_json())
    found = workspace.json("bench", "simulate", "--board", "here.json", "--staging", "resident", "--steps", "3")
    assert (found["board"], found["misses"], found["hits"], found["fits"]) == ("here", 6, 12, None)


def test_the_figure_is_a_light_png(workspace):
    workspace.run("bench", "simulate", "--steps", "2", "--staging", "ahead", "--figure", "step.png")
    data = (workspace.folder / "step.png").read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()
        assert picture.width == WIDTH
        assert len(picture.convert("RGB").getcolors(1000)) > 6  # every kind of work is there
    assert len(data) < 100_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--board", "rock-6"], "rock-6: a timing table must be one of rock-5c"),
        (["--staging", "ahead", "--cores", "3"], "--cores: must be 1 to 2 on rock-5c, got 3"),
        (["--figure", "step.jpg", "--steps", "1"], "--figure: must end in .png, got step.jpg"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(workspace, arguments, message):
    ended = workspace.run("bench", "simulate", *arguments, check=2)
    assert ended.stderr.startswith(f"error: {message}")
    assert ended.stderr.count("\n") == 1


def test_a_figure_that_cannot_be_written_is_a_storage_error(workspace):
    ended = workspace.run("bench", "simulate", "--steps", "1", "--staging", "ahead", "--figure", "no/step.png", check=5)
    assert "no/step.png" in ended.stderr
