"""What docs/overnight.md tells people to do: the unit is one, the commands and options exist."""

import configparser
import json
import re
import subprocess

import pytest
from page import DOCS, Page, unknown_options

from anima_batch.errors import AnimaBatchError

PAGE = Page("overnight.md")


def read_unit():
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read_string(PAGE.blocks("ini")[0])
    return unit


def table_rows(text, title):
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return rows[2:]


def codes_of(text):
    return {int(code) for row in table_rows(text, "Exit codes") for code in re.findall(r"\d+", row[0])}


def test_there_are_commands_to_check():
    assert {"run", "status", "plan", "verify", "audit", "models"} <= {words[0] for words in PAGE.words_of_commands()}


@pytest.mark.parametrize("words", [*PAGE.words_of_commands()], ids=" ".join)
def test_each_documented_command_and_option_exists(words):
    assert unknown_options(words) == set()


@pytest.mark.parametrize("line", PAGE.shell_lines())
def test_each_documented_program_is_there_or_said_where_from(line, need_tool):
    installed = " ".join(re.findall(r"apt install ([a-z0-9 -]+)", PAGE.text))
    from_packages = {"f3write": "f3", "f3read": "f3", "mmc": "mmc-utils"}
    board = {"ssh", "sudo", "apt-mark", "apt-config"}  # of any Debian, though not of a container's
    for part in re.split(r"[|]", re.sub(r"'[^']*'", "", line)):
        words = [word for word in part.split() if word != "sudo"]
        if words[0] in from_packages:
            assert from_packages[words[0]] in installed.split()
        elif words[0] not in {"anima-batch", *board}:
            need_tool(words[0])


def test_each_link_leads_somewhere():
    assert PAGE.broken_links() == set()


def test_systemd_takes_the_unit_without_a_word(verify_unit):
    assert verify_unit(PAGE.blocks("ini")[0]) == (0, "")


@pytest.mark.parametrize(("right", "wrong"), [("KillMode=mixed", "KillMode=mixe"), ("OOMPolicy", "OomPolicy")])
def test_systemd_would_complain_of_a_mistake_in_the_unit(verify_unit, right, wrong):
    _, said = verify_unit(PAGE.blocks("ini")[0].replace(right, wrong))
    assert said != ""


def test_the_unit_restarts_after_what_the_table_says():
    service = read_unit()["Service"]
    restarted = {row[0]: row[3] for row in table_rows(PAGE.text, "Exit codes")}
    numbers = {int(code): answer for codes, answer in restarted.items() for code in re.findall(r"\d+", codes)}
    assert restarted["by a signal"] == "yes"
    assert service["Restart"] == "on-failure"
    held_back = {*map(int, service["RestartPreventExitStatus"].split())}
    clean = {0, *map(int, service["SuccessExitStatus"].split())}
    assert {code for code, answer in numbers.items() if answer == "no"} == held_back | clean
    assert held_back == set(range(1, 7))


def test_the_table_has_every_exit_code_that_the_reference_and_the_errors_know():
    documented = {int(code) for row in table_rows(PAGE.text, "Exit codes") for code in re.findall(r"\d+", row[0])}
    reference = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert documented == {
        int(code) for row in table_rows(reference, "Exit codes") for code in re.findall(r"\d+", row[0])
    }
    assert {error.exit_code for error in AnimaBatchError.__subclasses__()} <= documented


def test_the_line_for_the_slowest_step_finds_it(workspace):
    workspace.run("run", workspace.write_job('[defaults]\nprompt = "a"\nseed = 1\nsteps = 3\n', "sweep"))
    (line,) = [line for line in PAGE.shell_lines() if line.startswith("grep -hoE")]
    found = subprocess.run(["sh", "-c", line], cwd=workspace.folder, capture_output=True, text=True, check=True).stdout
    (manifest,) = workspace.manifests("sweep").values()
    slowest = max([manifest["timings"]["decode"], *(step["seconds"] for step in manifest["steps"])])
    assert json.loads(found.partition(":")[2]) == slowest


def test_the_services_program_is_what_the_readme_installs():
    program, *words = read_unit()["Service"]["ExecStart"].split()
    assert program.endswith("/.venv/bin/anima-batch")
    assert words == ["run", "jobs/%i.toml"]
