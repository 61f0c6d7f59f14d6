"""The rehearsal of the full size, with small dimensions and without the second opinion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from studies.goals import Row, draw_rows, list_rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """The folder of a rehearsal that has ended, and what it printed."""
    folder = tmp_path_factory.mktemp("rehearsal")
    return folder, rehearse(folder)


def rehearse(folder):
    command = [sys.executable, "-m", "studies.rehearse", "--small", "--no-diffusers", "--rounds", "1"]
    ended = subprocess.run(
        [*command, "--folder", str(folder), "--json", str(folder / "result.json")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_commands_of_a_rehearsal_reach_their_goals(rehearsed):
    rows = {row["what"]: row for row in json.loads((rehearsed[0] / "result.json").read_text())["rows"]}
    assert all(row["ok"] is not False for row in rows.values())
    assert rows["tensors of the three files"]["figure"] == "90 + 13 + 194"
    assert rows["run, kill -9 in a step, run again"]["figure"] == "1 steps kept, goes on at step 2 of 3"
    assert rows["the same run unbroken, all sessions open"]["figure"] == "the same bits"


def test_the_two_stagings_give_the_same_bits(rehearsed):
    figures = json.loads((rehearsed[0] / "figures.json").read_text())
    assert figures["step-resident 1"]["sha256"] == figures["step-on-demand 1"]["sha256"]


def test_a_rehearsal_goes_on_where_it_was(rehearsed):
    folder, printed = rehearsed
    path = folder / "figures.json"
    figures = json.loads(path.read_text())
    del figures["decode 1"]
    path.write_text(json.dumps(figures))
    taken = [line for line in rehearse(folder).splitlines() if line.startswith("...")]
    assert taken == ["... decode 1"]
    assert printed.count("...") == len(figures) + 1


def test_a_missed_goal_is_marked(rehearsed):
    figures = json.loads((rehearsed[0] / "figures.json").read_text())
    figures["convert"]["peak_bytes"] = 7e9
    figures["resumed"]["result"][0] = "another digest"
    rows = list_rows(figures, blocks=3, small=True)
    assert [row.what for row in rows if row.ok is False] == ["convert", "the same run unbroken, all sessions open"]


def test_rows_are_drawn_as_a_table_of_even_columns():
    table = draw_rows([Row("convert", "3.0 s", "<= 6 GB", ok=True), Row("x", "y")])
    assert table.splitlines() == [
        "| what    | figure | goal    |    |",
        "| ------- | ------ | ------- | -- |",
        "| convert | 3.0 s  | <= 6 GB | ok |",
        "| x       | y      |         |    |",
    ]
