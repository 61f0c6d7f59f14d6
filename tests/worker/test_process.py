"""A real child process: how it starts, how it is stopped, and how its end is named."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from anima_batch.job import RunSpec
from anima_batch.model_set import find_model_set
from anima_batch.worker import WorkerFault
from anima_batch.worker.messages import Answer, Call, Failure, Opened, Opening
from anima_batch.worker.process import WorkerProcess

PICTURE_BOOK = find_model_set("picture-book", Path())
OPEN = Call("open", (Opening(PICTURE_BOOK, "onnx", RunSpec(threads=1)),))
PATIENCE = 120  # seconds; the machine may be busy


@pytest.fixture
def process():
    started = WorkerProcess()
    yield started
    started.kill()


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition):
    for _ in range(PATIENCE * 20):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def test_it_opens_a_model_set_and_says_what_computes(process):
    reply = process.ask(OPEN, PATIENCE)
    assert isinstance(reply, Answer)
    assert isinstance(reply.value, Opened)
    assert reply.value.backend == "onnx"
    assert {"onnxruntime", "numpy", "anima_batch"} <= set(reply.value.versions)


def test_it_has_only_its_own_descriptors(process, tmp_path):
    with (tmp_path / "file").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        second = WorkerProcess()
    second.ask(OPEN, PATIENCE)
    opened = [os.readlink(f"/proc/{second.pid}/fd/{name}") for name in os.listdir(f"/proc/{second.pid}/fd")]
    second.kill()
    assert not [target for target in opened if target.startswith("/") and target != "/dev/null"]
    assert sum(target.startswith("socket:") for target in opened) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_stop_a_run_do_not_reach_the_model(process, number):
    os.kill(process.pid, number)  # while it starts
    assert isinstance(process.ask(OPEN, PATIENCE), Answer)
    os.kill(process.pid, number)
    reply = process.ask(Call("find_warnings", (["(a:1.2)"],)), PATIENCE)
    assert isinstance(reply, Answer)
    assert len(reply.value[0]) == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "SIGKILL, most likely for want of memory (it held "),
        (signal.SIGSEGV, "SIGSEGV, a fault in the runtime or its driver (it held "),
        (signal.SIGABRT, "SIGABRT (it held "),
        (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1} (it held "),
    ],
)
def test_the_signal_that_ended_it_is_named_with_the_memory_before(process, number, words):
    process.ask(OPEN, PATIENCE)
    os.kill(process.pid, number)
    with pytest.raises(WorkerFault) as caught:
        process.ask(OPEN, PATIENCE)
    assert caught.value.kind == "worker"
    assert f"the worker process was ended by {words}" in str(caught.value)
    assert " MB were available)" in str(caught.value)


def test_what_it_cannot_understand_is_a_failure_with_its_traceback(process):
    reply = process.ask(Call("open", (None,)), PATIENCE)
    assert isinstance(reply, Failure)
    assert (reply.kind, reply.error) == ("unexpected", None)
    assert reply.message.startswith("AttributeError: ")
    assert "Traceback" in reply.traceback


def test_a_process_that_is_stopped_gives_no_answer_and_is_ended(process):
    process.ask(OPEN, PATIENCE)
    os.kill(process.pid, signal.SIGSTOP)
    assert process.ask(Call("find_warnings", (["a"],)), 0.3) is None
    assert not is_running(process.pid)


def test_closing_it_lets_it_end_by_itself(process):
    process.ask(OPEN, PATIENCE)
    started = time.monotonic()
    process.close()
    assert time.monotonic() - started < 14, "it had to be killed"
    assert not is_running(process.pid)


LONELY = """
import sys
sys.path.remove('')  # as the installed command has none
from anima_batch.worker.process import WorkerProcess
process = WorkerProcess()
print(process.pid, flush=True)
sys.stdin.read()
"""


ASKING = LONELY.replace(
    "sys.stdin.read()",
    """
from anima_batch.worker.messages import Call
print(process.ask(Call("find_warnings", ()), 120).message)
process.kill()
""",
)


def start_parent(code, folder):
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip


def test_its_module_search_path_is_ours_whatever_lies_in_the_current_folder(tmp_path):
    for name in ("json", "numpy", "anima_batch", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the workspace was imported')")
    said, _ = start_parent(ASKING, tmp_path).communicate()
    assert said.splitlines()[1].startswith("AssertionError: ")


def test_it_dies_with_its_parent_however_that_dies(tmp_path):
    parent = start_parent(LONELY, tmp_path)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    wait_until(lambda: not is_running(pid))
