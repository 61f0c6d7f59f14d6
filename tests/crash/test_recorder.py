"""Reading what strace saw."""

import sys

import pytest

from crash.recorder import EVENTS, MakeFolder, Open, Remove, Rename, Resize, Said, Sync, Write, parse, record

PROGRAM = """
import os
os.makedirs("outputs/ä")
descriptor = os.open("outputs/ä/a.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.write(descriptor, b"one\\0")
os.write(descriptor, b'"two"')
os.posix_fallocate(descriptor, 0, 20)
os.fsync(descriptor)
os.close(descriptor)
os.rename("outputs/ä/a.tmp", "outputs/ä/a")
folder = os.open("outputs/ä", os.O_RDONLY | os.O_DIRECTORY)
os.fsync(folder)
with open("events.jsonl", "ab", buffering=0) as events:
    events.write(b'{"event": "ImageDone", "stem": "x"}\\n')
open("elsewhere", "w").write("not ours")
os.unlink("outputs/ä/a")
try:
    os.unlink("outputs/ä/a")
except FileNotFoundError:
    pass
"""


def test_calls_are_recorded_in_order_with_their_data(tmp_path, need_tool):
    need_tool("strace")
    calls = record([sys.executable, "-c", PROGRAM], tmp_path)
    assert calls == [
        MakeFolder("outputs"),
        MakeFolder("outputs/ä"),
        Open("outputs/ä/a.tmp", create=True, truncate=True),
        Write("outputs/ä/a.tmp", 0, b"one\0"),
        Write("outputs/ä/a.tmp", 4, b'"two"'),
        Resize("outputs/ä/a.tmp", 20, grow_only=True),
        Sync("outputs/ä/a.tmp"),
        Rename("outputs/ä/a.tmp", "outputs/ä/a"),
        Sync("outputs/ä"),
        Said({"event": "ImageDone", "stem": "x"}),
        Remove("outputs/ä/a"),
    ]


def test_a_command_is_killed_as_it_is_about_to_sync(tmp_path, need_tool):
    need_tool("strace")
    calls = record([sys.executable, "-c", PROGRAM], tmp_path, kill_at_sync=2)
    assert calls[-1] == Rename("outputs/ä/a.tmp", "outputs/ä/a")


def test_a_command_that_fails_is_not_recorded(tmp_path, need_tool):
    need_tool("strace")
    with pytest.raises(AssertionError, match="oh no"):
        record([sys.executable, "-c", "raise SystemExit('oh no')"], tmp_path)


def test_a_call_that_another_process_interrupts_in_the_log_is_read_where_it_ends(tmp_path):
    def quote(text):
        return "".join(f"\\x{byte:02x}" for byte in str(text).encode())

    path = quote(tmp_path / "outputs/a")
    lines = [
        f'7 openat(AT_FDCWD<{quote(tmp_path)}>, "{quote("outputs/a")}", O_WRONLY|O_CREAT, 0644) = 3<{path}>',
        f'7 write(3<{path}>, "{quote("one")}", 3 <unfinished ...>',
        f'8 mkdir("{quote("outputs/b")}", 0777) = 0',
        "7 <... write resumed>) = 3",
        f'7 write(3<{path}>, "{quote("two")}", 3) = -1 ENOSPC (No space left on device)',
    ]
    calls = list(parse(lines, tmp_path))
    assert calls == [
        Open("outputs/a", create=True, truncate=False),
        MakeFolder("outputs/b"),
        Write("outputs/a", 0, b"one"),
    ]


def test_data_that_strace_cut_short_are_refused(tmp_path):
    descriptor = "".join(f"\\x{byte:02x}" for byte in str(tmp_path / EVENTS).encode())
    with pytest.raises(AssertionError, match="cut the data short"):
        list(parse([f'7 write(3<{descriptor}>, "\\x61"..., 30) = 30'], tmp_path))
