"""The commands that docs/board.md gives for the board, in its order, under emulation."""

import json
import re

import pytest
from page import Page

PAGE = Page("board.md")
LINES = [line for line in PAGE.shell_lines() if line.startswith(("anima-batch ", "grep "))]


def names_in(line):
    """Of `  key: name value, name value`."""
    return set(re.findall(r"(?<=[:,] )[a-z_0-9]+(?= )", line))


@pytest.fixture(scope="module")
def first(board):
    """The page's job, saved as it says; what each of its lines gave, and the job's folder of pictures."""
    board.write_job(PAGE.blocks("toml")[0], "first")
    (board.folder / "models" / "book-npu").symlink_to(board.folder / "models" / "board-book")
    return board


def test_the_page_has_the_way_to_the_first_picture():
    assert [line.split()[1] for line in LINES[:4]] == ["models", "doctor", "doctor", "audit"]


def test_the_copied_model_set_is_whole(first):
    ended = first.shell(LINES[0])
    assert (ended.returncode, ended.stdout.partition(":")[2][:4]) == (0, " ok,"), ended.stdout + ended.stderr


def test_the_doctor_misses_nothing_but_what_emulation_has_not(first):
    """There is a runtime, a chip and lite2; there is no kernel driver."""
    ended = first.shell(f"{LINES[1]} --json")
    assert ended.returncode == 4, ended.stderr
    checks = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
    assert checks["backend"]["found"] == "rknn: 18 .rknn graphs, toolkit 2.3.2"
    assert checks["rknn_toolkit_lite2"]["status"] == checks["soc"]["status"] == checks["python"]["status"] == "ok"
    assert checks["npu_driver"]["status"] == "fail"
    assert checks["librknnrt"]["status"] == "ok"
    failing = {name for name, check in checks.items() if check["status"] == "fail"}
    assert failing <= {"npu_driver", "npu_device"} | {"file_system"}  # the tests' folder may lie in memory


def test_the_first_picture_is_made_audited_and_tells_its_canary(first):
    run = LINES[2].partition("&& ")[2]  # behind the doctor, who has no driver here
    ended = first.shell(run)
    assert ended.returncode == 0, ended.stderr
    assert len(first.pictures("first")) == 1
    audited = first.shell(LINES[3])
    assert audited.returncode == 0, audited.stdout
    for line in PAGE.blocks("text")[0].splitlines():  # the page's own example: the same names, whatever the versions
        start = line.partition(": ")[0]
        (shown,) = [text for text in audited.stdout.splitlines() if text.startswith(f"{start}: ")]
        assert names_in(line) <= names_in(shown), shown
    (canary,) = [line for line in LINES if line.startswith("grep ")]
    assert re.fullmatch(r' +1 "npu_canary": "[0-9a-f]{32}"\n', first.shell(canary).stdout)
