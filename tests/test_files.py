from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash
from small_disk import SmallDisk

from anima_batch.errors import FolderLockedError, ModelSetError, StorageError
from anima_batch.files import (
    canonical_json,
    file_digests,
    is_disk_full,
    lock_folder,
    make_folder,
    read_json,
    remove_files,
    set_aside,
    storage_errors,
    write_atomic,
    xxh3_128_bytes,
)

WRITE = """
import sys
from pathlib import Path
from anima_batch.files import write_atomic
write_atomic(Path(sys.argv[1]), b"data")
"""
MAKE_FOLDER = """
import sys
from pathlib import Path
from anima_batch.files import make_folder
make_folder(Path(sys.argv[1]))
"""
HOLD_LOCK = """
import sys, time
from pathlib import Path
from anima_batch.files import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def lock_in_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of tmp_path."""
    with subprocess.Popen([sys.executable, "-c", HOLD_LOCK, tmp_path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_canonical_json_is_the_same_for_any_key_order_and_keeps_text_readable():
    assert (
        canonical_json({"b": [1, 2.5], "a": "雪"})
        == canonical_json({"a": "雪", "b": [1, 2.5]})
        == '{"a":"雪","b":[1,2.5]}'
    )


def test_canonical_json_refuses_what_json_cannot_hold():
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": math.nan})


def test_a_file_of_several_blocks_has_the_digests_of_its_bytes(tmp_path: Path):
    data = os.urandom((2 << 20) + 17)
    (tmp_path / "f").write_bytes(data)
    assert file_digests(tmp_path / "f") == (hashlib.sha256(data).hexdigest(), xxhash.xxh3_128_hexdigest(data))
    assert file_digests(tmp_path / "f", sha256=False) == ("", xxh3_128_bytes(data))


def test_xxh3_has_the_published_value_for_the_empty_input():
    """XXH3 128 bits of nothing with seed 0, from xxHash's own test vectors."""
    assert xxh3_128_bytes(b"") == "99aa06d3014798d86001c324468d497f"


@pytest.mark.parametrize("data", [b"", b"a", os.urandom(300_000)], ids=["empty", "one byte", "300 kB"])
def test_write_atomic_replaces_the_content_and_leaves_no_temporary_file(tmp_path: Path, data: bytes):
    path = tmp_path / "f"
    path.write_bytes(b"something longer than one byte")
    write_atomic(path, data)
    assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_a_leftover_temporary_file_is_harmless(tmp_path: Path):
    (tmp_path / "f.tmp").write_bytes(b"torn and longer than what comes")
    write_atomic(tmp_path / "f", b"whole")
    assert (tmp_path / "f").read_bytes() == b"whole"
    assert not (tmp_path / "f.tmp").exists()


def test_write_atomic_into_a_missing_folder_names_the_path_and_the_fault(tmp_path: Path):
    with pytest.raises(StorageError, match=rf"^{re.escape(str(tmp_path))}/gone/f: No such file or directory: "):
        write_atomic(tmp_path / "gone" / "f", b"")


def test_write_atomic_syncs_the_file_before_the_rename_and_the_folder_after_it(
    tmp_path: Path, need_tool: Callable[[str], str]
):
    log = tmp_path / "trace.log"
    calls = "trace=openat,write,fsync,close,/^rename"
    subprocess.run(
        [need_tool("strace"), "-y", "-e", calls, "-o", log, sys.executable, "-c", WRITE, tmp_path / "f"], check=True
    )
    folder = re.escape(str(tmp_path))
    told = [line for line in log.read_text().splitlines() if str(tmp_path) in line]
    wanted = [
        rf'openat\(.*"{folder}/f\.tmp", O_WRONLY\|O_CREAT\|O_EXCL.* = \d+',
        rf'write\(\d+<{folder}/f\.tmp>, "data", 4\) += 4',
        rf"fsync\(\d+<{folder}/f\.tmp>\) += 0",
        rf"close\(\d+<{folder}/f\.tmp>\) += 0",
        rf'rename\w*\(.*"{folder}/f\.tmp", .*"{folder}/f".*\) += 0',
        rf'openat\(.*"{folder}", O_RDONLY\|.*O_DIRECTORY.* = \d+',
        rf"fsync\(\d+<{folder}>\) += 0",
        rf"close\(\d+<{folder}>\) += 0",
    ]
    assert len(told) == len(wanted), "\n".join(told)
    for line, pattern in zip(told, wanted, strict=True):
        assert re.match(pattern, line), f"{line} is not {pattern}"


def test_a_full_disk_keeps_the_old_file_and_gets_its_space_back(small_disk: SmallDisk):
    path = small_disk.folder / "f"
    write_atomic(path, b"old")
    small_disk.fill(leave=250_000)
    with pytest.raises(StorageError, match=r"/f: No space left on device: free some space, then") as caught:
        write_atomic(path, bytes(400_000))
    assert caught.value.errno == errno.ENOSPC
    assert is_disk_full(caught.value)
    assert path.read_bytes() == b"old"
    write_atomic(small_disk.folder / "g", bytes(200_000))
    assert (small_disk.folder / "g").stat().st_size == 200_000


def test_a_disk_that_became_read_only_keeps_the_old_file(small_disk: SmallDisk):
    path = small_disk.folder / "f"
    write_atomic(path, b"old")
    small_disk.remount("ro")
    with pytest.raises(StorageError, match=r"/f: Read-only file system: remount it writable, then") as caught:
        write_atomic(path, b"new")
    assert not is_disk_full(caught.value)
    assert path.read_bytes() == b"old"


def trace_write(strace: str, path: Path, *faults: str) -> tuple[str, list[str]]:
    """(stderr, [call and file]) of a write of `path` in a process of its own, with errors injected."""
    log = path.with_name("trace.log")
    command = [strace, "-y", "-e", "trace=openat,fsync,/^rename", *faults, "-o", log, sys.executable, "-c", WRITE, path]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    told = [line for line in log.read_text().splitlines() if str(path.parent) in line]
    calls = [re.match(rf'(\w+)\(.*?{re.escape(str(path.parent))}([\w/.]*)[">]', line) for line in told]
    return done.stderr, [f"{call[1]} {call[2]}".strip() for call in calls if call]


IN_FULL = ["openat /f.tmp", "fsync /f.tmp", "rename /f.tmp", "openat", "fsync"]


@pytest.mark.parametrize("fault", ["ENOSPC", "EROFS"])
def test_a_failed_fsync_is_not_repeated_and_the_old_file_stays(
    tmp_path: Path, need_tool: Callable[[str], str], fault: str
):
    (tmp_path / "f").write_bytes(b"old")
    told, calls = trace_write(need_tool("strace"), tmp_path / "f", "-e", f"inject=fsync:error={fault}")
    assert "StorageError" in told
    assert calls == ["openat /f.tmp", "fsync /f.tmp"]
    assert (tmp_path / "f").read_bytes() == b"old"
    assert not (tmp_path / "f.tmp").exists()


def test_after_an_io_error_one_fresh_file_is_tried(tmp_path: Path, need_tool: Callable[[str], str]):
    told, calls = trace_write(need_tool("strace"), tmp_path / "f", "-e", "inject=fsync:error=EIO:when=1")
    assert told == ""
    assert calls == ["openat /f.tmp", "fsync /f.tmp", *IN_FULL]
    assert (tmp_path / "f").read_bytes() == b"data"


def test_a_folder_that_could_not_be_synced_gets_a_fresh_file_before_it_is_synced_again(
    tmp_path: Path, need_tool: Callable[[str], str]
):
    told, calls = trace_write(need_tool("strace"), tmp_path / "f", "-e", "inject=fsync:error=EIO:when=2")
    assert told == ""
    assert calls == [*IN_FULL, *IN_FULL]


@pytest.mark.parametrize("fault", ["fsync:error=EIO", "/^rename:error=EIO"])
def test_a_second_io_error_is_the_end_and_the_old_file_stays(
    tmp_path: Path, need_tool: Callable[[str], str], fault: str
):
    (tmp_path / "f").write_bytes(b"old")
    told, calls = trace_write(need_tool("strace"), tmp_path / "f", "-e", f"inject={fault}")
    assert "f: Input/output error: the storage is failing: " in told
    assert calls.count("openat /f.tmp") == calls.count("fsync /f.tmp") == 2
    assert (tmp_path / "f").read_bytes() == b"old"
    assert not (tmp_path / "f.tmp").exists()


def test_a_temporary_file_is_always_a_new_one(tmp_path: Path):
    (tmp_path / "elsewhere").write_bytes(b"a user's")
    (tmp_path / "f.tmp").symlink_to(tmp_path / "elsewhere")
    os.link(tmp_path / "elsewhere", tmp_path / "g.tmp")
    for name in ("f", "g"):
        write_atomic(tmp_path / name, b"data")
        assert (tmp_path / name).read_bytes() == b"data"
        assert not (tmp_path / name).is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"a user's"


def test_a_folder_in_the_place_of_the_file_is_named_and_stays(tmp_path: Path):
    (tmp_path / "f").mkdir()
    with pytest.raises(StorageError, match="/f: Is a directory: "):
        write_atomic(tmp_path / "f", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_make_folder_makes_the_parents_and_may_be_called_again(tmp_path: Path):
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def synced_folders(strace: str, folder: Path, log: Path) -> list[str]:
    """The folders that make_folder syncs in a process of its own, in order."""
    command = [strace, "-y", "-e", "trace=fsync", "-o", log, sys.executable, "-c", MAKE_FOLDER, folder]
    subprocess.run(command, check=True)
    return re.findall(r"^fsync\(\d+<(.*)>\) += 0$", log.read_text(), re.MULTILINE)


def test_make_folder_syncs_each_parent_of_a_new_folder(tmp_path: Path, need_tool: Callable[[str], str]):
    (tmp_path / "w").mkdir()
    wanted = [str(tmp_path), f"{tmp_path}/w", f"{tmp_path}/w/a"]
    assert synced_folders(need_tool("strace"), tmp_path / "w" / "a" / "b", tmp_path / "log") == wanted


def test_make_folder_syncs_the_parent_of_a_folder_that_a_killed_process_may_have_left(
    tmp_path: Path, need_tool: Callable[[str], str]
):
    (tmp_path / "w" / "a").mkdir(parents=True)
    assert synced_folders(need_tool("strace"), tmp_path / "w" / "a", tmp_path / "log") == [f"{tmp_path}/w"]


def test_make_folder_says_so_when_a_file_is_in_its_place(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="/a: File exists: "):
        make_folder(tmp_path / "a")
    with pytest.raises(StorageError, match="/a: File exists: "):
        make_folder(tmp_path / "a" / "b")


def test_remove_files_passes_over_files_that_are_gone(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"")
    remove_files([tmp_path / "a", tmp_path / "b", tmp_path / "gone" / "c"])
    assert list(tmp_path.iterdir()) == []


def test_set_aside_never_overwrites_what_was_set_aside_before(tmp_path: Path):
    path = tmp_path / "f"
    names = []
    for content in ("first", "second", "third"):
        path.write_text(content)
        names.append(set_aside(path).name)
    assert names == ["f.aside-1", "f.aside-2", "f.aside-3"]
    assert [(tmp_path / name).read_text() for name in names] == ["first", "second", "third"]
    assert not path.exists()


def test_set_aside_does_not_replace_an_empty_folder_or_a_dangling_link(tmp_path: Path):
    (tmp_path / "d.aside-1").mkdir()
    (tmp_path / "d.aside-2").symlink_to(tmp_path / "nowhere")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("kept")
    assert set_aside(tmp_path / "d").name == "d.aside-3"
    assert (tmp_path / "d.aside-3" / "f").read_text() == "kept"
    assert (tmp_path / "d.aside-2").is_symlink()


def test_the_second_runner_is_told_the_first_ones_pid(tmp_path: Path, lock_in_process: subprocess.Popen[str]):
    second = subprocess.run([sys.executable, "-c", HOLD_LOCK, tmp_path], check=False, capture_output=True, text=True)
    assert second.returncode == 1
    assert f"{tmp_path}: held by pid {lock_in_process.pid}, " in second.stderr
    with pytest.raises(FolderLockedError, match=f"held by pid {lock_in_process.pid}, "), lock_folder(tmp_path):
        pass


def test_the_lock_goes_with_a_killed_process(tmp_path: Path, lock_in_process: subprocess.Popen[str]):
    lock_in_process.send_signal(signal.SIGKILL)
    lock_in_process.wait()
    with lock_folder(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_the_lock_is_given_back_at_the_end_of_its_block(tmp_path: Path):
    with lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        pass


def test_locking_a_missing_folder_is_a_storage_error(tmp_path: Path):
    with pytest.raises(StorageError, match="/gone: No such file or directory: "), lock_folder(tmp_path / "gone"):
        pass


def test_an_error_inside_the_lock_stays_what_it_is(tmp_path: Path):
    with pytest.raises(OSError, match="mine"), lock_folder(tmp_path):
        raise OSError("mine")


def test_a_storage_error_without_a_number_still_tells_its_text():
    with pytest.raises(StorageError, match="x: odd: everything written before is kept"), storage_errors(Path("x")):
        raise OSError("odd")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (None, "cannot be read"),
    ],
    ids=["cut", "not UTF-8", "too deep", "missing"],
)
def test_read_json_gives_the_callers_error_with_one_line(tmp_path: Path, content: bytes | None, fault: str):
    if content is not None:
        (tmp_path / "f").write_bytes(content)
    with pytest.raises(ModelSetError, match=rf"/f: the model set {fault}: .+") as caught:
        read_json(tmp_path / "f", what="the model set", error=ModelSetError)
    assert "\n" not in str(caught.value)


def test_a_machine_that_cannot_read_is_no_fault_of_the_file(tmp_path: Path):
    """With no descriptor left, a file that is good gives exit code 5 and not the caller's error."""
    path = tmp_path / "job.json"
    path.write_text("{}")
    program = """
import os, resource, sys
from pathlib import Path
from anima_batch.errors import StorageError, UsageError
from anima_batch.files import read_json
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1,) * 2)
try:
    read_json(Path(sys.argv[1]), what="the pinned job", error=UsageError)
except StorageError as error:
    print(error.exit_code, error)
"""
    ended = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"5 {path}: Too many open files: everything written before is kept")
