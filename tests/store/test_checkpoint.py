from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_disk import SmallDisk

from anima_batch.errors import StorageError
from anima_batch.files import is_disk_full, sha256_bytes
from anima_batch.store.checkpoint import Checkpoint, CheckpointFolder
from anima_batch.store.integrity import NewerFormatError
from anima_batch.store.tensors import pack_tensors, packed_sha256

LOAD = """
import sys
from pathlib import Path
from anima_batch.errors import StorageError
from anima_batch.store import CheckpointFolder
try:
    CheckpointFolder(Path(sys.argv[1])).load()
except StorageError as error:
    print(type(error).__name__, error.errno, error)
"""
SAVE_THREE = """
import sys
from pathlib import Path
import numpy as np
from anima_batch.store import Checkpoint, CheckpointFolder

def tensors(*steps):
    return {f"history.{step}.0": np.full(9, step, np.float32) for step in steps}

checkpoints = CheckpointFolder(Path(sys.argv[1]))
checkpoints.load()
checkpoints.save(Checkpoint(1, 2, tensors(0, 1), {}))
checkpoints.save(Checkpoint(2, 3, tensors(1, 2), {}))
(Path(sys.argv[1]).parent / "MARK").touch()
checkpoints.save(Checkpoint(3, 4, tensors(2, 3), {}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".checkpoints" / "0123456789ab"


def checkpoint(generation: int, history: tuple[int, ...] = ()) -> Checkpoint:
    """A state after `generation` + 1 steps; a history step's values depend on the step alone."""
    tensors = {"latents": np.full((16, 2, 2), generation, np.float32), "window": np.array(2.5, np.float32)}
    for step in history:
        for stream in (0, 1):
            tensors[f"history.{step}.{stream}"] = np.full((4, 8), step * 10 + stream, np.float32)
    return Checkpoint(generation, generation + 1, tensors, {"request": "ab", "generation": "the caller's own"})


def assert_same(found: Checkpoint | None, wanted: Checkpoint) -> None:
    assert found is not None
    assert (found.generation, found.step, found.meta) == (wanted.generation, wanted.step, wanted.meta)
    assert set(found.tensors) == set(wanted.tensors)
    for name, array in wanted.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], array, strict=True)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x20
    path.write_bytes(bytes(data))


def test_without_a_folder_there_is_no_checkpoint_and_no_problem(folder: Path):
    loaded = CheckpointFolder(folder).load()
    assert (loaded.checkpoint, loaded.problems, loaded.next_generation) == (None, (), 0)


def test_a_saved_checkpoint_comes_back(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0, 1)))
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(0, history=(0, 1)))
    assert (loaded.problems, loaded.next_generation) == ((), 1)
    assert names(folder) == {"ckpt.0", "history.0", "history.1"}


def test_the_newest_generation_wins_and_two_are_kept(folder: Path):
    for generation in range(5):
        CheckpointFolder(folder).save(checkpoint(generation))
        assert_same(CheckpointFolder(folder).load().checkpoint, checkpoint(generation))
    assert names(folder) == {"ckpt.0", "ckpt.1"}


def test_generations_are_ordered_by_number_and_not_by_the_clock(folder: Path):
    CheckpointFolder(folder).save(checkpoint(9))
    CheckpointFolder(folder).save(checkpoint(10))
    os.utime(folder / "ckpt.0", (0, 0))  # a board without a battery came back in 1970
    assert_same(CheckpointFolder(folder).load().checkpoint, checkpoint(10))


@pytest.mark.parametrize("content", [b"", bytes(500), b"anima-batch checkpoint v1"], ids=["empty", "zeros", "torn"])
def test_the_older_generation_serves_when_the_newer_is_torn(folder: Path, content: bytes):
    CheckpointFolder(folder).save(checkpoint(2))
    (folder / "ckpt.1").write_bytes(content)
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(2))
    assert loaded.next_generation == 3
    assert len(loaded.problems) == 1


def test_a_checkpoint_that_cannot_be_read_is_a_problem_and_the_other_serves(folder: Path):
    CheckpointFolder(folder).save(checkpoint(2))
    (folder / "ckpt.1").mkdir()
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(2))
    assert loaded.problems == (f"{folder}/ckpt.1: must be a regular file: put it out of the way",)


def test_with_both_generations_corrupt_there_is_none_and_both_are_named(folder: Path):
    CheckpointFolder(folder).save(checkpoint(2))
    CheckpointFolder(folder).save(checkpoint(3))
    flip(folder / "ckpt.0", 300)
    flip(folder / "ckpt.1", 300)
    loaded = CheckpointFolder(folder).load()
    assert loaded.checkpoint is None
    assert [problem.partition(": ")[0] for problem in loaded.problems] == [f"{folder}/ckpt.0", f"{folder}/ckpt.1"]


def test_a_generation_in_the_other_ones_place_is_refused(folder: Path):
    CheckpointFolder(folder).save(checkpoint(2))
    (folder / "ckpt.1").write_bytes((folder / "ckpt.0").read_bytes())
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(2))
    assert loaded.problems == (f"{folder}/ckpt.1: holds generation 2, whose place is ckpt.0: remove it",)


def test_a_checkpoint_of_a_later_version_is_not_passed_over(folder: Path):
    CheckpointFolder(folder).save(checkpoint(2))
    body = (folder / "ckpt.0").read_bytes().partition(b"\n")[2]
    digest = sha256_bytes(b"anima-batch checkpoint v2\n" + body)
    (folder / "ckpt.1").write_bytes(f"anima-batch checkpoint v2 sha256:{digest}\n".encode() + body)
    with pytest.raises(NewerFormatError, match=r"/ckpt\.1: "):
        CheckpointFolder(folder).load()


@pytest.mark.parametrize("resumed", [False, True], ids=["in one process", "after a resume"])
def test_a_history_file_is_written_once(folder: Path, *, resumed: bool):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    before = (folder / "history.0").stat()
    if resumed:
        checkpoints = CheckpointFolder(folder)
        checkpoints.load()
    checkpoints.save(checkpoint(1, history=(0, 1)))
    after = (folder / "history.0").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_history_file_that_was_removed_under_the_run_is_written_again(folder: Path):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    (folder / "history.0").unlink()
    checkpoints.save(checkpoint(1, history=(0, 1)))
    assert_same(CheckpointFolder(folder).load().checkpoint, checkpoint(1, history=(0, 1)))


def test_history_of_a_generation_that_was_lost_is_written_again(folder: Path):
    """The older one serves, so nothing is known of what the newer one's step left."""
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    checkpoints.save(checkpoint(1, history=(0, 1)))
    (folder / "ckpt.1").write_bytes(b"torn")
    flip(folder / "history.1", 200)
    checkpoints = CheckpointFolder(folder)
    assert checkpoints.load().next_generation == 1
    checkpoints.save(checkpoint(1, history=(0, 1)))
    assert_same(CheckpointFolder(folder).load().checkpoint, checkpoint(1, history=(0, 1)))


@pytest.mark.parametrize("fresh", [False, True], ids=["in one process", "each by another process"])
def test_a_history_file_is_removed_only_when_no_generation_names_it(folder: Path, *, fresh: bool):
    checkpoints = CheckpointFolder(folder)
    kept = [
        ((0, 1), {"history.0", "history.1"}),
        ((1, 3), {"history.0", "history.1", "history.3"}),
        ((3,), {"history.1", "history.3"}),
        ((3,), {"history.3"}),
    ]
    for generation, (history, files) in enumerate(kept):
        if fresh:
            checkpoints = CheckpointFolder(folder)
            checkpoints.load()
        checkpoints.save(checkpoint(generation, history))
        assert names(folder) - {"ckpt.0", "ckpt.1"} == files


def test_history_that_a_generation_saved_by_another_process_names_stays_without_a_load(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    CheckpointFolder(folder).save(checkpoint(1, history=(1,)))
    assert names(folder) == {"ckpt.0", "ckpt.1", "history.0", "history.1"}


def test_history_files_that_no_generation_names_go_at_the_next_save(folder: Path):
    """A power cut may bring a removed file back, since removing one is not synced."""
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(5,)))
    (folder / "history.2").write_bytes(b"came back")
    (folder / "history.2.aside-1").write_bytes(b"a user's")
    (folder / "history.3").mkdir()
    checkpoints.save(checkpoint(1, history=(5,)))
    assert names(folder) == {"ckpt.0", "ckpt.1", "history.5", "history.2.aside-1", "history.3"}


def test_the_older_generation_serves_when_the_newer_ones_history_is_missing(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    CheckpointFolder(folder).save(checkpoint(1, history=(0, 1)))
    (folder / "history.1").unlink()
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert len(loaded.problems) == 1
    assert loaded.problems[0].startswith(f"{folder}/history.1: missing, and generation 1 needs it: ")


def test_a_history_file_that_is_whole_but_another_one_is_not_taken(folder: Path, tmp_path: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    CheckpointFolder(folder).save(checkpoint(1, history=(0, 1)))
    other = {"history.1.0": np.zeros((4, 8), np.float32)}
    CheckpointFolder(tmp_path / "other").save(Checkpoint(0, 1, other, {}))
    (folder / "history.1").write_bytes((tmp_path / "other" / "history.1").read_bytes())
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert loaded.problems[0].startswith(f"{folder}/history.1: its sha256 must be ")


def unreadable(path: Path) -> None:
    """Put a link to itself there: reading fails with ELOOP, as a bad sector does with EIO, root or not."""
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize("name", ["ckpt.1", "history.1"])
def test_the_older_generation_serves_when_a_file_of_the_newer_cannot_be_read(folder: Path, name: str):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    checkpoints.save(checkpoint(1, history=(0, 1)))
    unreadable(folder / name)
    loaded = checkpoints.load()
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert loaded.problems[0].startswith(f"{folder}/{name}: cannot be read: ")
    checkpoints.save(checkpoint(1, history=(0, 1)))
    assert_same(checkpoints.load().checkpoint, checkpoint(1, history=(0, 1)))


@pytest.mark.parametrize("names", [["ckpt.0", "ckpt.1"], ["history.0"]], ids=["both slots", "history that both need"])
def test_an_image_is_not_given_up_for_files_that_cannot_be_read(folder: Path, names: list[str]):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    checkpoints.save(checkpoint(1, history=(0, 1)))
    for name in names:
        unreadable(folder / name)
    with pytest.raises(StorageError, match=rf"/{names[0]}: cannot be read: .*: mend that, or move /.* away") as caught:
        checkpoints.load()
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("name", ["ckpt.0", "history.0"])
def test_an_io_error_while_reading_is_a_storage_error(folder: Path, need_tool: Callable[[str], str], name: str):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    fault = [need_tool("strace"), "-qq", "-o", "/dev/null", "-P", folder / name, "-e", "inject=read:error=EIO"]
    ended = subprocess.run([*fault, sys.executable, "-c", LOAD, folder], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith(f"StorageError 5 {folder}/{name}: cannot be read: Input/output error: ")


@pytest.mark.parametrize("name", ["ckpt.1", "history.1"])
def test_a_folder_in_the_place_of_a_file_is_set_aside_at_the_next_save(folder: Path, name: str):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    (folder / name).mkdir()
    (folder / name / "kept").write_bytes(b"a user's")
    checkpoints.save(checkpoint(1, history=(0, 1)))
    assert_same(checkpoints.load().checkpoint, checkpoint(1, history=(0, 1)))
    assert (folder / f"{name}.aside-1" / "kept").read_bytes() == b"a user's"


@pytest.mark.parametrize("name", ["ckpt.1", "history.1", "ckpt.1.tmp", "history.1.tmp"])
@pytest.mark.parametrize("target", ["missing", "elsewhere"])
def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(folder: Path, name: str, target: str):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    (folder.parent / "elsewhere").write_bytes(b"a user's")
    (folder / name).symlink_to(folder.parent / target)
    checkpoints.save(checkpoint(1, history=(0, 1)))
    assert_same(checkpoints.load().checkpoint, checkpoint(1, history=(0, 1)))
    assert (folder.parent / "elsewhere").read_bytes() == b"a user's"
    assert not (folder.parent / "missing").exists()


def test_a_copy_by_hard_links_keeps_its_state(folder: Path, tmp_path: Path):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    checkpoints.save(checkpoint(1, history=(0, 1)))
    (folder / "ckpt.0.tmp").write_bytes(b"left by a kill")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        os.link(path, copy / path.name)
    for generation in (2, 3):
        checkpoints.save(checkpoint(generation, history=(2,)))
    assert_same(CheckpointFolder(copy).load().checkpoint, checkpoint(1, history=(0, 1)))
    assert (copy / "ckpt.0.tmp").read_bytes() == b"left by a kill"


@pytest.mark.parametrize("name", ["ckpt.1", "history.1"])
@pytest.mark.parametrize("start", ["whole", "empty"])
def test_a_file_grown_to_a_terabyte_of_holes_is_refused_unread(folder: Path, name: str, start: str):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    checkpoints.save(checkpoint(1, history=(0, 1)))
    if start == "empty":
        (folder / name).write_bytes(b"")
    os.truncate(folder / name, 1 << 40)
    loaded = checkpoints.load()
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert loaded.problems[0].startswith(f"{folder}/{name}: not a valid ")


def test_a_later_version_of_any_size_is_told_from_a_changed_file_without_holding_it(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0))
    header = b"anima-batch checkpoint v9 sha256:" + b"0" * 64 + b"\n"
    (folder / "ckpt.1").write_bytes(header)
    os.truncate(folder / "ckpt.1", 64 << 20)
    tracemalloc.start()
    loaded = CheckpointFolder(folder).load()
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()
    assert_same(loaded.checkpoint, checkpoint(0))


@pytest.mark.parametrize(
    "changes",
    [
        {"generation": -1},
        {"generation": 1.0},
        {"generation": 1 << 70, "step": "3"},
        {"step": None},
        {"history": {"../../x": "0" * 64}},
        {"history": {"00": "0" * 64}},
        {"history": {"0": "A" * 64}},
        {"history": ["0"]},
        {"meta": []},
        {"more": 1},
    ],
)
def test_a_slot_of_other_content_under_a_right_digest_is_refused(folder: Path, changes: dict[str, object]):
    CheckpointFolder(folder).save(checkpoint(0))
    content = {"generation": 1, "step": 2, "history": {}, "meta": {}, **changes}
    (folder / "ckpt.1").write_bytes(pack_tensors("checkpoint", {}, content))
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(0))
    assert loaded.problems[0].startswith(f"{folder}/ckpt.1: not a valid checkpoint: ")
    assert "\n" not in loaded.problems[0]


def test_the_digest_that_binds_a_history_file_is_the_one_of_its_own_header(folder: Path):
    """So that megabytes of features are hashed once."""
    CheckpointFolder(folder).save(checkpoint(0, history=(3,)))
    header = (folder / "history.3").read_bytes().partition(b"\n")[0]
    assert header.endswith(packed_sha256((folder / "history.3").read_bytes()).encode())
    assert header.rpartition(b":")[2] in (folder / "ckpt.0").read_bytes()


def test_a_step_reads_nothing_and_writes_what_is_new(folder: Path, need_tool: Callable[[str], str]):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    log = folder.parent / "trace.log"
    calls = "trace=openat,/^rename,fsync,/^unlink"
    command = [need_tool("strace"), "-y", "-e", calls, "-o", log, sys.executable, "-c", SAVE_THREE, folder]
    subprocess.run(command, check=True)
    told = log.read_text().partition("MARK")[2]
    kept = [line for line in told.splitlines() if str(folder) in line]
    found = [(line.partition("(")[0], re.findall(r"([\w.]*)[\">]", line.partition(str(folder))[2])[0]) for line in kept]
    one_file = [("openat", ".tmp"), ("fsync", ".tmp"), ("rename", ".tmp"), ("openat", ""), ("fsync", "")]
    wanted = [(call, f"{name}{end}" if end else "") for name in ("history.3", "ckpt.1") for call, end in one_file]
    assert found == [*wanted, ("openat", ""), ("unlink", "history.0")], "\n".join(kept)


def test_a_history_file_that_both_need_leaves_none_and_the_next_generation_is_newer_than_both(folder: Path):
    CheckpointFolder(folder).save(checkpoint(6, history=(0,)))
    CheckpointFolder(folder).save(checkpoint(7, history=(0,)))
    flip(folder / "history.0", 200)
    loaded = CheckpointFolder(folder).load()
    assert loaded.checkpoint is None
    assert len(loaded.problems) == 2
    assert loaded.next_generation == 8


def test_a_damaged_history_file_is_replaced_at_the_next_save(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    flip(folder / "history.0", 200)
    CheckpointFolder(folder).save(checkpoint(1, history=(0,)))
    assert_same(CheckpointFolder(folder).load().checkpoint, checkpoint(1, history=(0,)))


def test_history_without_a_checkpoint_is_harmless(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0, 1)))
    (folder / "ckpt.0").unlink()
    loaded = CheckpointFolder(folder).load()
    assert (loaded.checkpoint, loaded.problems) == (None, ())
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    assert names(folder) == {"ckpt.0", "history.0"}


def test_leftover_temporary_files_are_harmless(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    for name in ("ckpt.0.tmp", "ckpt.1.tmp", "history.0.tmp", "history.1.tmp"):
        (folder / name).write_bytes(b"torn")
    loaded = CheckpointFolder(folder).load()
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert loaded.problems == ()
    CheckpointFolder(folder).save(checkpoint(1, history=(0, 1)))
    assert_same(CheckpointFolder(folder).load().checkpoint, checkpoint(1, history=(0, 1)))


def test_tensors_whose_names_only_look_like_history_stay_in_the_checkpoint(folder: Path):
    tensors = {name: np.ones(1, np.float32) for name in ("history.count", "history.01.0", "history.1", "history.1.0.0")}
    CheckpointFolder(folder).save(Checkpoint(0, 1, tensors, {}))
    assert names(folder) == {"ckpt.0"}
    assert_same(CheckpointFolder(folder).load().checkpoint, Checkpoint(0, 1, tensors, {}))


def test_drop_removes_the_folder_with_its_attempts_and_leftovers(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    CheckpointFolder(folder).save(checkpoint(1, history=(0, 1)))
    for name in ("attempts", "attempts.tmp", "history.2.tmp", "ckpt.0.tmp"):
        (folder / name).write_bytes(b"")
    CheckpointFolder(folder).drop()
    assert not folder.exists()
    assert folder.parent.is_dir()
    CheckpointFolder(folder).drop()


@pytest.mark.parametrize("gone", ["ckpt.0", "ckpt.1", "history.0", "history.1"])
def test_drop_finishes_what_a_crash_left(folder: Path, gone: str):
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    CheckpointFolder(folder).save(checkpoint(1, history=(0, 1)))
    (folder / gone).unlink()
    CheckpointFolder(folder).load()
    CheckpointFolder(folder).drop()
    assert not folder.exists()


def test_drop_leaves_files_that_are_not_the_stores_own(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0))
    (folder / "ckpt.0.aside-1").write_bytes(b"kept")
    CheckpointFolder(folder).drop()
    assert names(folder) == {"ckpt.0.aside-1"}


def test_a_full_disk_keeps_the_checkpoint_that_is_there(small_disk: SmallDisk):
    checkpoints = CheckpointFolder(small_disk.folder / "c")
    checkpoints.save(checkpoint(0, history=(0,)))
    small_disk.fill(leave=32_000)
    big = {**checkpoint(1, history=(0,)).tensors, "history.1.0": np.zeros(60_000, np.uint8)}
    for _ in range(2):
        with pytest.raises(StorageError, match=r"/history\.1: No space left on device") as caught:
            checkpoints.save(Checkpoint(1, 2, big, {}))
        assert is_disk_full(caught.value)
        assert_same(CheckpointFolder(checkpoints.path).load().checkpoint, checkpoint(0, history=(0,)))
    small_disk.empty()
    checkpoints.save(checkpoint(1, history=(0, 1)))
    assert_same(CheckpointFolder(checkpoints.path).load().checkpoint, checkpoint(1, history=(0, 1)))


def test_drop_leaves_folders_that_have_a_files_name(folder: Path):
    CheckpointFolder(folder).save(checkpoint(0))
    (folder / "ckpt.1").mkdir()
    CheckpointFolder(folder).drop()
    assert names(folder) == {"ckpt.1"}


def test_drop_removes_nothing_behind_a_link_to_a_folder_elsewhere(folder: Path, tmp_path: Path):
    folder.parent.mkdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    CheckpointFolder(folder).save(checkpoint(0, history=(0,)))
    assert names(tmp_path / "elsewhere") == {"ckpt.0", "history.0"}
    CheckpointFolder(folder).drop()
    assert names(tmp_path / "elsewhere") == {"ckpt.0", "history.0"}
    assert folder.is_symlink()


def test_what_was_set_aside_or_dropped_is_not_taken_for_known(folder: Path):
    checkpoints = CheckpointFolder(folder)
    checkpoints.save(checkpoint(0, history=(0,)))
    aside = checkpoints.set_aside()
    assert names(aside) == {"ckpt.0", "history.0"}
    for _ in range(2):
        checkpoints.save(checkpoint(0, history=(0,)))
        assert_same(CheckpointFolder(folder).load().checkpoint, checkpoint(0, history=(0,)))
        checkpoints.drop()
