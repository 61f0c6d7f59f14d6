"""A real child process: how it starts, how it is stopped, and how its end is named."""

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from anima_batch.backends.printed import KEPT_BYTES
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
    own = {"/dev/null", "/memfd:printed (deleted)"}
    assert not [target for target in opened if target.startswith("/") and target not in own]
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop("PYTHONUNBUFFERED", None)  # the child has to see to that itself
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip


class Deadly:
    """Ends the process that receives it by SIGSEGV, at once after some last lines of code."""

    def __init__(self, last):
        self.code = f"import ctypes, os\n{last}\nctypes.string_at(0)"

    def __reduce__(self):
        return exec, (self.code,)


DYING = LONELY.replace(
    "sys.stdin.read()",
    inspect.getsource(Deadly)
    + """
import json
from anima_batch.worker import WorkerFault
from anima_batch.worker.messages import Call
try:
    process.ask(Call("open", (Deadly(sys.stdin.read()),)), 120)
except WorkerFault as fault:
    print(json.dumps([str(fault), fault.details, process.output]))
""",
)


@pytest.mark.parametrize(
    "last",
    [
        "os.write(2, b'E RKNN: last words\\n')",
        "ctypes.CDLL(None).puts(b'E RKNN: last words')",
        "print('E RKNN: last words', end='')",
    ],
)
def test_what_it_prints_in_the_instant_of_its_death_is_quoted_and_kept(last, tmp_path):
    said, _ = start_parent(DYING, tmp_path).communicate(last)
    message, details, output = json.loads(said.splitlines()[1])
    assert "SIGSEGV" in message
    assert message.endswith('; it last printed "E RKNN: last words"')
    assert details == output == "E RKNN: last words"


def test_what_it_prints_takes_no_more_memory_than_a_megabyte_for_long(process):
    """A library that prints 64 MiB and then nothing for a while."""
    chatter = "for _ in range(1024): os.write(1, b'x' * (1 << 16) + b'\\n')\n"
    asked = Deadly(f"{chatter}import time; time.sleep(3.5); os.write(2, b'last words\\n')")
    sizes, done = [], threading.Event()
    path = f"/proc/{process.pid}/fd/2"

    def watch():
        while not done.wait(0.05):
            with contextlib.suppress(OSError):
                sizes.append(os.stat(path).st_size)

    watching = threading.Thread(target=watch)
    watching.start()
    with pytest.raises(WorkerFault) as caught:
        process.ask(Call("open", (asked,)), PATIENCE)
    done.set()
    watching.join()
    assert max(sizes) > 1 << 20
    assert min(sizes[sizes.index(max(sizes)) :]) < 1 << 20
    assert len(caught.value.details) <= KEPT_BYTES
    assert caught.value.details.endswith("x\nlast words")


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
