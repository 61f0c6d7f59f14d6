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

from anima_batch.errors import FolderLockedError, ModelSetError, StorageError
from anima_batch.files import (
    canonical_json,
    file_digests,
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
HOLD_LOCK = """
import sys, time
from pathlib import Path
from anima_batch.files import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


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
        rf'openat\(.*"{folder}/f\.tmp", O_WRONLY\|O_CREAT\|O_TRUNC.* = \d+',
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


def test_a_full_disk_keeps_the_old_file_and_gets_its_space_back(small_disk: Path):
    path = small_disk / "f"
    write_atomic(path, b"old")
    with pytest.raises(StorageError, match=r"/f: No space left on device: free some space, then") as caught:
        write_atomic(path, bytes(400_000))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    write_atomic(small_disk / "g", bytes(200_000))
    assert (small_disk / "g").stat().st_size == 200_000


def test_a_disk_that_became_read_only_keeps_the_old_file(small_disk: Path):
    path = small_disk / "f"
    write_atomic(path, b"old")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StorageError, match=r"/f: Read-only file system: remount it writable, then"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "EROFS"])
def test_a_failed_fsync_is_not_repeated_and_the_old_file_stays(
    tmp_path: Path, need_tool: Callable[[str], str], fault: str
):
    (tmp_path / "f").write_bytes(b"old")
    log = tmp_path / "trace.log"
    command = [need_tool("strace"), "-e", "trace=fsync,/^rename", "-e", f"inject=fsync:error={fault}", "-o", log]
    done = subprocess.run(
        [*command, sys.executable, "-c", WRITE, tmp_path / "f"], check=False, capture_output=True, text=True
    )
    assert "StorageError" in done.stderr
    calls = [line for line in log.read_text().splitlines() if line.startswith(("fsync", "rename"))]
    assert len(calls) == 1
    assert calls[0].startswith("fsync")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert not (tmp_path / "f.tmp").exists()


def test_make_folder_makes_the_parents_and_may_be_called_again(tmp_path: Path):
    make_folder(tmp_path / "a" / "b" / "c")
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


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
