"""What a library prints on the descriptors of a real process: heard, passed on at once, and put back as it was."""

import subprocess
import sys
from pathlib import Path

import anima_batch

PRELUDE = """
import ctypes, os, signal, sys
from anima_batch.backends.printed import KEPT_BYTES, Printing
printing = Printing()
libc = ctypes.CDLL(None)
"""


def run_python(script):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + script],
        env={"PYTHONPATH": str(Path(anima_batch.__file__).parents[1])},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_text_of_python_and_of_both_c_streams_is_heard_and_passed_on():
    ended = run_python("""
print("before")
with printing.listen() as printed:
    libc.puts(b"from the buffer of C")
    os.write(2, b"from a descriptor\\n")
    print("from Python")
print("after")
os.write(2, repr(sorted(printed.text.splitlines())).encode())
""")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "before\nafter\n"
    heard, told = ended.stderr.rsplit("\n", 1)
    assert sorted(heard.splitlines()) == ["from Python", "from a descriptor", "from the buffer of C"]
    assert told == "['from Python', 'from a descriptor', 'from the buffer of C']"


def test_an_exception_leaves_the_descriptors_as_they_were():
    ended = run_python("""
try:
    with printing.listen() as printed:
        os.write(1, b"heard\\n")
        raise ValueError
except ValueError:
    print("out", printed.text.strip())
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "out heard\n", "heard\n")


def test_megabytes_from_a_call_that_leaves_the_lock_to_others_are_passed_on_and_the_end_is_kept():
    """ctypes gives the interpreter's lock away during a call, as it does for the runtime's."""
    ended = run_python("""
data = b"x" * (4 << 20) + b"the end"
with printing.listen() as printed:
    assert libc.write(2, data, len(data)) == len(data)
assert len(printed.text) == KEPT_BYTES and printed.text.endswith("the end")
""")
    assert ended.returncode == 0
    assert len(ended.stderr) == (4 << 20) + 7


def test_no_more_descriptors_or_threads_are_held_after_many_calls_than_after_one():
    ended = run_python("""
import threading
def held():
    return len(os.listdir("/proc/self/fd")), threading.active_count()
with printing.listen():
    pass
before = held()
for _ in range(200):
    with printing.listen():
        os.write(1, b".")
assert held() == before
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "." * 200)


def test_a_closed_reader_on_the_other_side_does_not_end_the_call():
    ended = run_python("""
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(reader)
os.close(writer)
with printing.listen() as printed:
    os.write(1, b"heard\\n")
print(printed.text.strip())
""")
    assert (ended.returncode, ended.stdout) == (0, "heard\n")


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
    told.append((sorted(opening.text.split()), opening.alone))
    first_has_ended.set()
told = []
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
print(told == [(["opening", "running"], False)] or told, sorted(running.text.split()), running.alone, after.alone)
""")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "True ['last', 'opening', 'running'] False True\n"
    assert sorted(ended.stderr.split()) == ["last", "opening", "running"]


def test_calls_of_four_threads_that_come_and_go_lose_nothing_and_leave_nothing():
    ended = run_python("""
import threading
def held():
    return len(os.listdir("/proc/self/fd")), threading.active_count()
def call(name):
    for number in range(50):
        with printing.listen() as printed:
            os.write(2, b"%s%d\\n" % (name, number) * 20)
        assert printed.text.count("%s%d\\n" % (name.decode(), number)) == 20, (name, number)
with printing.listen():
    pass
before = held()
threads = [threading.Thread(target=call, args=(name,)) for name in (b"a", b"b", b"c", b"d")]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert held() == before
""")
    lines = ended.stderr.splitlines()
    assert ended.returncode == 0, lines[-5:]
    assert {line: lines.count(line) for line in set(lines)} == {f"{name}{n}": 20 for name in "abcd" for n in range(50)}


def test_what_a_child_prints_after_the_call_goes_on_to_the_process():
    ended = run_python("""
import subprocess, time
with printing.listen() as printed:
    child = subprocess.Popen(["sh", "-c", "sleep 0.2; echo late >&2"])
child.wait()
time.sleep(0.3)
print(repr(printed.text))
""")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "''\n", "late\n")


def test_zero_bytes_that_a_library_prints_are_text_like_any_other():
    ended = run_python("""
with printing.listen() as printed:
    os.write(2, b"a\\x00b\\x00\\x0012\\x00c")
    os.write(2, b"\\x00")
print(repr(printed.text))
""")
    assert (ended.returncode, ended.stdout) == (0, repr("a\x00b\x00\x0012\x00c\x00") + "\n")
