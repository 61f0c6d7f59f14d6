"""A toolkit's process: what it gives, and one line for each way in which it ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from command import ENVIRONMENT
from convert.rknn.toolkit_stand_in import make_program

from anima_batch.convert.rknn.adaln import build_reproducer
from anima_batch.convert.rknn.toolkit import TOOLKITS, open_toolkit
from anima_batch.errors import ToolkitError, UsageError

WEIGHT = np.ones((8, 8), np.float32)


@pytest.fixture
def task(tmp_path):
    graph = tmp_path / "graph.onnx"
    graph.write_bytes(build_reproducer(WEIGHT, "scale", bias=True))
    return {"task": "build", "name": "transformer.00.mlp", "onnx": str(graph)}


def test_a_result_has_the_seconds_of_its_process(task, tmp_path):
    toolkit = make_program(tmp_path / "bin", "2.3.2", """echo '{"build_seconds": 1.5}' > "$4"; sleep 0.2""")
    result = toolkit.run(task, tmp_path / "scratch")
    assert result["build_seconds"] == 1.5
    assert 0.2 <= result["seconds"] < 60


def test_exit_139_names_graph_version_pattern_and_what_to_do(task, tmp_path):
    with pytest.raises(ToolkitError) as caught:
        make_program(tmp_path / "bin", "2.3.2", "kill -SEGV $$").run(task, tmp_path / "scratch")
    assert str(caught.value) == (
        "transformer.00.mlp: rknn-toolkit2 2.3.2: build: exit 139 (SIGSEGV): "
        "this version dies of LayerNorm with a bias x (1 + scale) before a MatMul: "
        "feed 1 + scale as an input, leave the bias out, or take toolkit 2.3.0 or 2.5.0"
    )
    assert (caught.value.process_exit, caught.value.exit_code) == (139, 4)


def test_another_version_that_dies_is_told_with_the_last_it_said(task, tmp_path):
    line = """printf 'E build: no such operator\\nI bye\\n'; kill -ABRT $$"""
    with pytest.raises(ToolkitError, match=r"2\.5\.0: build: exit 134 \(SIGABRT\): E build: no such operator$"):
        make_program(tmp_path / "bin", "2.5.0", line).run(task, tmp_path / "scratch")


def test_a_process_killed_for_its_memory_says_so(task, tmp_path):
    with pytest.raises(ToolkitError, match=r"exit 137 \(SIGKILL\): the machine had too little memory"):
        make_program(tmp_path / "bin", "2.5.0", "kill -KILL $$").run(task, tmp_path / "scratch")


@pytest.mark.parametrize(("returned", "ending"), [("true", ": E load_onnx: bad"), ("false", "")])
def test_an_exception_is_quoted_and_what_was_printed_where_a_call_only_returned_a_code(
    returned, ending, task, tmp_path
):
    answer = f'{{"error": "CallError: build returned -1", "returned": {returned}}}'
    line = f"""printf '\\033[31mE load_onnx: bad\\033[0m\\n'; echo '{answer}' > "$4"; exit 1"""
    with pytest.raises(ToolkitError) as caught:
        make_program(tmp_path / "bin", "2.5.0", line).run(task, tmp_path / "scratch")
    where = "transformer.00.mlp: rknn-toolkit2 2.5.0: build: "
    assert str(caught.value) == f"{where}CallError: build returned -1{ending}"


def test_the_result_of_an_earlier_task_is_not_taken_for_this_ones(task, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "result.json").write_text('{"build_seconds": 1.0}')
    with pytest.raises(ToolkitError, match="exit 0: it said nothing"):
        make_program(tmp_path / "bin", "2.5.0", "true").run(task, tmp_path / "scratch")


def test_the_working_directory_is_the_scratch_folder(task, tmp_path):
    line = """pwd > here; touch check0.onnx; echo '{"a": 1}' > "$4\""""
    make_program(tmp_path / "bin", "2.3.2", line).run(task, tmp_path / "scratch")
    assert (tmp_path / "scratch" / "here").read_text() == f"{tmp_path / 'scratch'}\n"


def test_an_unknown_version_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(UsageError, match=r"--toolkit: must be one of 2\.3\.0, 2\.3\.2, 2\.5\.0, got '1\.6\.0'"):
        open_toolkit("1.6.0", tmp_path / "toolkits")
    assert not (tmp_path / "toolkits").exists()


def make_finished(folder, version):
    """An environment as open_toolkit leaves it, without what is in it."""
    (folder / version / "bin").mkdir(parents=True)
    (folder / version / "bin" / "python").touch()
    (folder / version / "requirements.txt").write_text("\n".join(TOOLKITS[version]) + "\n")


def test_an_environment_that_is_there_is_taken(tmp_path):
    make_finished(tmp_path, "2.5.0")
    told = []
    toolkit = open_toolkit("2.5.0", tmp_path, told.append)
    assert (toolkit.version, toolkit.python, told) == ("2.5.0", tmp_path / "2.5.0" / "bin" / "python", [])


def open_without_index(folder, working_directory=None):
    """open_toolkit where pip finds nothing, in a process of its own: its environment variables are the process's."""
    code = (
        "from anima_batch.convert.rknn.toolkit import open_toolkit; from pathlib import Path; "
        f"open_toolkit('2.5.0', Path({str(folder)!r}), print)"
    )
    nothing = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=ENVIRONMENT | nothing, cwd=working_directory, capture_output=True, text=True)


def test_an_environment_of_other_pins_is_made_anew_and_what_cannot_be_made_has_no_name(tmp_path):
    make_finished(tmp_path, "2.5.0")
    (tmp_path / "2.5.0" / "requirements.txt").write_text("torch==1.0\n")
    ended = open_without_index(tmp_path)
    assert ended.stdout.startswith("toolkit 2.5.0: its environment is made in ")
    last = ended.stderr.splitlines()[-1]
    assert (
        "rknn-toolkit2 2.5.0: pip install torch: exit 1: ERROR: No matching distribution found for torch==2.13.0"
        in last
    )
    assert f"(all it said is in {tmp_path}/2.5.0.log)" in last
    assert not (tmp_path / "2.5.0").exists()


def test_a_folder_that_is_relative_to_the_working_directory_is_where_the_environment_is_made(tmp_path):
    ended = open_without_index("toolkits", tmp_path)
    assert f"(all it said is in {tmp_path}/toolkits/2.5.0.log)" in ended.stderr.splitlines()[-1]
    assert sorted(path.name for path in (tmp_path / "toolkits").iterdir() if path.is_dir()) == ["2.5.0.partial"]


def test_a_build_dies_with_whoever_asked_for_it(task, tmp_path):
    """The real program's own doing; here only that the process is killed when the caller is interrupted."""
    toolkit = make_program(tmp_path / "bin", "2.3.2", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell's & ignores it
        "from anima_batch.convert.rknn.toolkit import Toolkit; from pathlib import Path; "
        f"Toolkit('2.3.2', Path({str(toolkit.python)!r})).run({task!r}, Path({str(tmp_path / 'scratch')!r}))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT, stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text().strip()):
        assert caller.poll() is None
        time.sleep(0.01)
    time.sleep(0.5)  # it knows of the process by then; one that it does not know of ends by its parent's death
    caller.send_signal(2)
    caller.wait(timeout=60)
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
