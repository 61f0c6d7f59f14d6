"""What a library prints on the descriptors of a real process: heard where it is kept, and there after a crash."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import anima_batch
from anima_batch.backends.printed import KEPT_BYTES, PrintedFile

PRELUDE = """
import ctypes, os, sys
from anima_batch.backends.printed import KEPT_BYTES, Printing
printing = Printing()
libc = ctypes.CDLL(None)
told = os.fdopen(os.dup(1), "w")
if kept: os.dup2(2, 1)
"""


def run_python(script, stderr=None):
    """The ended process, and all that was printed: kept in a file as a worker's, or read from `stderr`."""
    with closing(PrintedFile()) as file:
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", f"kept = {stderr is None}\n{PRELUDE}{script}\ntold.close()"],
            env={"PYTHONPATH": str(Path(anima_batch.__file__).parents[1])},
            stdout=subprocess.PIPE, stderr=stderr or file.descriptor, text=True, timeout=60, check=False,
        )  # fmt: skip
        size = os.fstat(file.descriptor).st_size
        ended.stderr = ended.stderr or os.pread(file.descriptor, size, 0).decode()
    return ended


def test_text_of_python_and_of_both_c_streams_is_heard():
    ended = run_python("""
print("before")
with printing.listen() as printed:
    libc.puts(b"from the buffer of C")
    os.write(2, b"from a descriptor\\n")
    print("from Python")
print("after")
print(sorted(printed.text.splitlines()), printed.alone, file=told)
""")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "['from Python', 'from a descriptor', 'from the buffer of C'] True\n"
    first, *heard, last = ended.stderr.splitlines()
    assert (first, last) == ("before", "after")
    assert sorted(heard) == ["from Python", "from a descriptor", "from the buffer of C"]


@pytest.mark.parametrize("stderr", [subprocess.PIPE, "a file that cannot be read"])
def test_where_stderr_is_not_kept_nothing_is_heard_and_all_goes_on_at_once(stderr, tmp_path):
    path = tmp_path / "log"
    with path.open("ab") as log:
        ended = run_python(
            """
with printing.listen() as printed:
    os.write(2, b"to whoever reads it\\n")
print(repr(printed.text), file=told)
""",
            stderr if stderr == subprocess.PIPE else log,
        )
    assert (ended.returncode, ended.stdout) == (0, "''\n"), ended.stderr
    assert (ended.stderr or path.read_text()) == "to whoever reads it\n"


def test_a_process_without_stderr_hears_nothing():
    ended = run_python("os.close(2)\nwith Printing().listen() as printed: pass\nprint(repr(printed.text), file=told)")
    assert (ended.returncode, ended.stdout) == (0, "''\n"), ended.stderr


def test_an_exception_does_not_hide_what_was_printed():
    ended = run_python("""
try:
    with printing.listen() as printed:
        os.write(1, b"heard\\n")
        raise ValueError
except ValueError:
    print("out", printed.text.strip(), file=told)
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "out heard\n", "heard\n")


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])
def test_megabytes_from_a_call_that_leaves_or_holds_the_interpreters_lock_are_no_trouble(library):
    ended = run_python(f"""
data = b"x" * (4 << 20) + b"the end"
with printing.listen() as printed:
    assert ctypes.{library}(None).write(2, data, len(data)) == len(data)
assert len(printed.text) == KEPT_BYTES and printed.text.endswith("the end")
""")
    assert ended.returncode == 0, ended.stderr[-1000:]
    assert len(ended.stderr) == (4 << 20) + 7


def test_what_two_threads_print_at_a_time_is_heard_by_both_calls_which_say_that_they_were_not_alone():
    """As a graph that is opened ahead and one that runs."""
    ended = run_python("""
import threading
both, first_has_ended = threading.Barrier(2, timeout=30), threading.Event()
def open_ahead():
    with printing.listen() as opening:
        both.wait()
        os.write(2, b"opening\\n")
        both.wait()
    heard.append((sorted(opening.text.split()), opening.alone))
    first_has_ended.set()
heard = []
thread = threading.Thread(target=open_ahead)
thread.start()
with printing.listen() as running:
    both.wait()
    libc.puts(b"running")
    both.wait()
    assert first_has_ended.wait(30)
    os.write(1, b"last\\n")
thread.join()
with printing.listen() as after:
    pass
print(heard == [(["opening", "running"], False)] or heard, file=told)
print(sorted(running.text.split()), running.alone, repr(after.text), after.alone, file=told)
""")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "True\n['last', 'opening', 'running'] False '' True\n"
    assert sorted(ended.stderr.split()) == ["last", "opening", "running"]


def test_of_two_calls_that_heard_the_same_so_far_the_one_that_ends_is_over():
    ended = run_python("""
with printing.listen() as first:
    with printing.listen() as second:
        pass
    os.write(2, b"more\\n")
print(repr(first.text), repr(second.text), file=told)
""")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "'more\\n' ''\n"


def test_calls_of_four_threads_that_come_and_go_lose_nothing():
    ended = run_python("""
import threading
def call(name):
    for number in range(50):
        with printing.listen() as printed:
            os.write(2, b"%s%d\\n" % (name, number) * 20)
        assert printed.text.count("%s%d\\n" % (name.decode(), number)) == 20, (name, number)
threads = [threading.Thread(target=call, args=(name,)) for name in (b"a", b"b", b"c", b"d")]
for thread in threads: thread.start()
for thread in threads: thread.join()
""")
    lines = ended.stderr.splitlines()
    assert ended.returncode == 0, lines[-5:]
    assert {line: lines.count(line) for line in set(lines)} == {f"{name}{n}": 20 for name in "abcd" for n in range(50)}


def test_what_is_printed_in_the_instant_of_a_crash_is_there():
    ended = run_python("""
with printing.listen():
    os.write(2, b"last words\\n")
    ctypes.string_at(0)
""")
    assert (ended.returncode, ended.stderr) == (-signal.SIGSEGV, "last words\n")


def test_a_file_that_grew_is_cut_and_its_end_stays_known():
    with closing(PrintedFile()) as file:
        os.write(file.descriptor, b"a" * (1 << 20))
        file.trim()
        assert os.fstat(file.descriptor).st_size == 1 << 20
        os.write(file.descriptor, b"b" * 100)
        file.trim()
        assert os.fstat(file.descriptor).st_size == 0
        assert file.read_end() == "a" * (KEPT_BYTES - 100) + "b" * 100
        os.write(file.descriptor, b"c" * 10)
        assert os.fstat(file.descriptor).st_size == 10
        assert file.read_end() == "a" * (KEPT_BYTES - 110) + "b" * 100 + "c" * 10
        os.write(file.descriptor, b"d" * (2 << 20))
        file.trim()
        assert file.read_end() == "d" * KEPT_BYTES


def test_a_call_during_which_the_file_was_cut_hears_what_was_printed_after():
    ended = run_python("""
os.write(2, b"before" * 1000)
with printing.listen() as printed:
    os.write(2, b"lost")
    os.ftruncate(2, 0)
    os.write(2, b"after\\n")
print(repr(printed.text), file=told)
""")
    assert (ended.returncode, ended.stdout) == (0, "'after\\n'\n"), ended.stderr
