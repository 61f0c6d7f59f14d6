"""What a terminal may be shown."""

import json
import math
import os

import pytest
from command import show_on_terminal
from hypothesis import given, settings
from hypothesis import strategies as st

from anima_batch.console.results import show_errors
from anima_batch.console.text import LINE_CHARACTERS, format_seconds, printable, printable_json, shorten
from anima_batch.errors import AnimaBatchError, JobError

ANY_TEXT = st.text(st.characters())  # lone surrogates too: a file name need not be UTF-8
HOSTILE = "a\nb\rc\x1b[2Jd\x9b31me\u202ef\u2028g\x7fh\0i\x85j"


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_any_text_comes_out_on_one_line_that_is_printable(text):
    assert printable(text).isprintable()
    printable(text).encode()
    assert (printable(text) == text) == text.isprintable()


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(ANY_TEXT, ANY_TEXT | st.lists(ANY_TEXT, max_size=3), max_size=3))
def test_json_for_a_terminal_is_printable_and_means_the_same(value):
    text = printable_json(value)
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text) == value


def test_each_line_of_an_error_is_one_line_whatever_the_names_in_it(capsys):
    show_errors(AnimaBatchError(f"{HOSTILE}: wrong", "second: wrong too").lines)
    show_errors(JobError([f"{HOSTILE}: wrong", "second: wrong too"]).lines)
    lines = capsys.readouterr().err.split("\n")
    escaped = r"error: a\nb\rc\x1b[2Jd\x9b31me\u202ef\u2028g\x7fh\x00i\x85j: wrong"
    assert lines == [escaped, "error: second: wrong too", escaped, "error: second: wrong too", ""]


def test_a_line_that_nobody_can_read_is_shortened_in_its_middle():
    assert shorten("x" * LINE_CHARACTERS) == "x" * LINE_CHARACTERS
    text = shorten(f"begin{'x' * 10_000_000}end")
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) < LINE_CHARACTERS + 10


@pytest.mark.parametrize("seconds", [None, math.nan, math.inf, -math.inf])
def test_a_time_that_is_no_number_is_unknown(seconds):
    assert format_seconds(seconds) == "unknown"


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\rb", "a\u2028b", "a\x9bb", "[red]a[/red]"])
def test_a_hostile_file_name_is_said_on_one_line(workspace, name):
    ended = workspace.run("plan", f"jobs/{name}.toml", check=2)
    assert ended.stderr == f"error: jobs/{printable(name)}.toml: must be a job file that can be read, got: no such file or directory\n"  # fmt: skip  # noqa: E501
    ended = workspace.run("audit", f"{name}.png", check=2)
    assert ended.stderr.count("\n") == 1
    assert printable(name) in ended.stderr


def test_a_file_name_that_is_not_utf8_is_said_on_one_line(workspace):
    name = os.fsdecode(b"jobs/\xff\xfe.toml")
    assert r"jobs/\udcff\udcfe.toml: " in workspace.run("plan", name, check=2).stderr


def test_what_a_prompt_holds_does_not_reach_a_terminal(workspace):
    """The prompt is shown in a warning, since it looks like one with weights."""
    prompt = "(\x1b[2Jred\x9b31m [bold]x[/bold] :cat:1.2)"
    job = workspace.write_job(f"[defaults]\nprompt = {json.dumps(prompt)}\nseed = 1\nsteps = 1\n")
    shown = show_on_terminal(workspace, "run", job)
    assert r"(\x1b[2Jred\x9b31m [bold]x[/bold] :cat:1.2)" in shown
    assert "\x1b[2J" not in shown
    assert "\x9b" not in shown
    found = workspace.json("audit", "outputs/job")
    assert found[0]["request"]["prompt"] == prompt
    for arguments in (("audit", "outputs/job"), ("audit", "outputs/job", "--json"), ("plan", job, "--json")):
        assert all(line.isprintable() for line in workspace.run(*arguments).stdout.split("\n"))
