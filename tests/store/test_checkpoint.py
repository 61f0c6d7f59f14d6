from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from anima_batch.errors import StorageError
from anima_batch.files import sha256_bytes
from anima_batch.store.checkpoint import Checkpoint, drop_checkpoint, load_checkpoint, save_checkpoint
from anima_batch.store.integrity import NewerFormatError


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
    loaded = load_checkpoint(folder)
    assert (loaded.checkpoint, loaded.problems, loaded.next_generation) == (None, (), 0)


def test_a_saved_checkpoint_comes_back(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0, 1)))
    loaded = load_checkpoint(folder)
    assert_same(loaded.checkpoint, checkpoint(0, history=(0, 1)))
    assert (loaded.problems, loaded.next_generation) == ((), 1)
    assert names(folder) == {"ckpt.0", "history.0", "history.1"}


def test_the_newest_generation_wins_and_two_are_kept(folder: Path):
    for generation in range(5):
        save_checkpoint(folder, checkpoint(generation))
        assert_same(load_checkpoint(folder).checkpoint, checkpoint(generation))
    assert names(folder) == {"ckpt.0", "ckpt.1"}


def test_generations_are_ordered_by_number_and_not_by_the_clock(folder: Path):
    save_checkpoint(folder, checkpoint(9))
    save_checkpoint(folder, checkpoint(10))
    os.utime(folder / "ckpt.0", (0, 0))  # a board without a battery came back in 1970
    assert_same(load_checkpoint(folder).checkpoint, checkpoint(10))


def test_the_older_generation_serves_for_every_flipped_byte_of_the_newer(folder: Path):
    save_checkpoint(folder, checkpoint(2))
    save_checkpoint(folder, checkpoint(3))
    whole = (folder / "ckpt.1").read_bytes()
    for offset in range(len(whole)):
        flip(folder / "ckpt.1", offset)
        loaded = load_checkpoint(folder)
        assert loaded.checkpoint is not None
        assert loaded.checkpoint.generation == 2, f"the flip at {offset} was not found"
        assert len(loaded.problems) == 1
        assert loaded.problems[0].startswith(f"{folder}/ckpt.1: ")
        (folder / "ckpt.1").write_bytes(whole)


@pytest.mark.parametrize("content", [b"", bytes(500), b"anima-batch checkpoint v1"], ids=["empty", "zeros", "torn"])
def test_the_older_generation_serves_when_the_newer_is_torn(folder: Path, content: bytes):
    save_checkpoint(folder, checkpoint(2))
    (folder / "ckpt.1").write_bytes(content)
    loaded = load_checkpoint(folder)
    assert_same(loaded.checkpoint, checkpoint(2))
    assert loaded.next_generation == 3
    assert len(loaded.problems) == 1


def test_a_checkpoint_that_cannot_be_read_is_a_problem_and_the_other_serves(folder: Path):
    save_checkpoint(folder, checkpoint(2))
    (folder / "ckpt.1").mkdir()
    loaded = load_checkpoint(folder)
    assert_same(loaded.checkpoint, checkpoint(2))
    assert loaded.problems == (f"{folder}/ckpt.1: must be a regular file: put it out of the way",)


def test_with_both_generations_corrupt_there_is_none_and_both_are_named(folder: Path):
    save_checkpoint(folder, checkpoint(2))
    save_checkpoint(folder, checkpoint(3))
    flip(folder / "ckpt.0", 300)
    flip(folder / "ckpt.1", 300)
    loaded = load_checkpoint(folder)
    assert loaded.checkpoint is None
    assert [problem.partition(": ")[0] for problem in loaded.problems] == [f"{folder}/ckpt.0", f"{folder}/ckpt.1"]


def test_a_generation_in_the_other_ones_place_is_refused(folder: Path):
    save_checkpoint(folder, checkpoint(2))
    (folder / "ckpt.1").write_bytes((folder / "ckpt.0").read_bytes())
    loaded = load_checkpoint(folder)
    assert_same(loaded.checkpoint, checkpoint(2))
    assert loaded.problems == (f"{folder}/ckpt.1: holds generation 2, whose place is ckpt.0: remove it",)


def test_a_checkpoint_of_a_later_version_is_not_passed_over(folder: Path):
    save_checkpoint(folder, checkpoint(2))
    body = (folder / "ckpt.0").read_bytes().partition(b"\n")[2]
    digest = sha256_bytes(b"anima-batch checkpoint v2\n" + body)
    (folder / "ckpt.1").write_bytes(f"anima-batch checkpoint v2 sha256:{digest}\n".encode() + body)
    with pytest.raises(NewerFormatError, match=r"/ckpt\.1: "):
        load_checkpoint(folder)


def test_a_history_file_is_written_once(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    before = (folder / "history.0").stat()
    save_checkpoint(folder, checkpoint(1, history=(0, 1)))
    after = (folder / "history.0").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_history_file_is_removed_only_when_no_generation_names_it(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0, 1)))
    save_checkpoint(folder, checkpoint(1, history=(1, 3)))
    assert names(folder) == {"ckpt.0", "ckpt.1", "history.0", "history.1", "history.3"}
    save_checkpoint(folder, checkpoint(2, history=(3,)))
    assert names(folder) == {"ckpt.0", "ckpt.1", "history.1", "history.3"}
    save_checkpoint(folder, checkpoint(3, history=(3,)))
    assert names(folder) == {"ckpt.0", "ckpt.1", "history.3"}


def test_the_older_generation_serves_when_the_newer_ones_history_is_missing(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    save_checkpoint(folder, checkpoint(1, history=(0, 1)))
    (folder / "history.1").unlink()
    loaded = load_checkpoint(folder)
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert len(loaded.problems) == 1
    assert loaded.problems[0].startswith(f"{folder}/history.1: missing, and generation 1 needs it: ")


def test_the_older_generation_serves_for_every_flipped_byte_of_the_newer_ones_history(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    save_checkpoint(folder, checkpoint(1, history=(0, 1)))
    whole = (folder / "history.1").read_bytes()
    for offset in range(len(whole)):
        flip(folder / "history.1", offset)
        assert_same(load_checkpoint(folder).checkpoint, checkpoint(0, history=(0,)))
        (folder / "history.1").write_bytes(whole)


def test_a_history_file_that_is_whole_but_another_one_is_not_taken(folder: Path, tmp_path: Path):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    save_checkpoint(folder, checkpoint(1, history=(0, 1)))
    other = {"history.1.0": np.zeros((4, 8), np.float32)}
    save_checkpoint(tmp_path / "other", Checkpoint(0, 1, other, {}))
    (folder / "history.1").write_bytes((tmp_path / "other" / "history.1").read_bytes())
    loaded = load_checkpoint(folder)
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert loaded.problems[0].startswith(f"{folder}/history.1: its sha256 must be ")


def test_a_history_file_that_both_need_leaves_none_and_the_next_generation_is_newer_than_both(folder: Path):
    save_checkpoint(folder, checkpoint(6, history=(0,)))
    save_checkpoint(folder, checkpoint(7, history=(0,)))
    flip(folder / "history.0", 200)
    loaded = load_checkpoint(folder)
    assert loaded.checkpoint is None
    assert len(loaded.problems) == 2
    assert loaded.next_generation == 8


def test_a_damaged_history_file_is_replaced_at_the_next_save(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    flip(folder / "history.0", 200)
    save_checkpoint(folder, checkpoint(1, history=(0,)))
    assert_same(load_checkpoint(folder).checkpoint, checkpoint(1, history=(0,)))


def test_history_without_a_checkpoint_is_harmless(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0, 1)))
    (folder / "ckpt.0").unlink()
    loaded = load_checkpoint(folder)
    assert (loaded.checkpoint, loaded.problems) == (None, ())
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    assert names(folder) == {"ckpt.0", "history.0"}


def test_leftover_temporary_files_are_harmless(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    for name in ("ckpt.0.tmp", "ckpt.1.tmp", "history.0.tmp", "history.1.tmp"):
        (folder / name).write_bytes(b"torn")
    loaded = load_checkpoint(folder)
    assert_same(loaded.checkpoint, checkpoint(0, history=(0,)))
    assert loaded.problems == ()
    save_checkpoint(folder, checkpoint(1, history=(0, 1)))
    assert_same(load_checkpoint(folder).checkpoint, checkpoint(1, history=(0, 1)))


def test_tensors_whose_names_only_look_like_history_stay_in_the_checkpoint(folder: Path):
    tensors = {name: np.ones(1, np.float32) for name in ("history.count", "history.01.0", "history.1", "history.1.0.0")}
    save_checkpoint(folder, Checkpoint(0, 1, tensors, {}))
    assert names(folder) == {"ckpt.0"}
    assert_same(load_checkpoint(folder).checkpoint, Checkpoint(0, 1, tensors, {}))


def test_drop_removes_the_folder_with_its_attempts_and_leftovers(folder: Path):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    save_checkpoint(folder, checkpoint(1, history=(0, 1)))
    for name in ("attempts", "attempts.tmp", "history.2.tmp", "ckpt.0.tmp"):
        (folder / name).write_bytes(b"")
    drop_checkpoint(folder)
    assert not folder.exists()
    assert folder.parent.is_dir()
    drop_checkpoint(folder)


@pytest.mark.parametrize("gone", ["ckpt.0", "ckpt.1", "history.0", "history.1"])
def test_drop_finishes_what_a_crash_left(folder: Path, gone: str):
    save_checkpoint(folder, checkpoint(0, history=(0,)))
    save_checkpoint(folder, checkpoint(1, history=(0, 1)))
    (folder / gone).unlink()
    load_checkpoint(folder)
    drop_checkpoint(folder)
    assert not folder.exists()


def test_drop_leaves_files_that_are_not_the_stores_own(folder: Path):
    save_checkpoint(folder, checkpoint(0))
    (folder / "ckpt.0.aside-1").write_bytes(b"kept")
    drop_checkpoint(folder)
    assert names(folder) == {"ckpt.0.aside-1"}


def test_a_full_disk_keeps_the_checkpoint_that_is_there(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        save_checkpoint(disk / "c", checkpoint(0, history=(0,)))
        big = {**checkpoint(1).tensors, "history.1.0": np.zeros(60_000, np.uint8)}
        with pytest.raises(StorageError, match=r"/history\.1: No space left on device"):
            save_checkpoint(disk / "c", Checkpoint(1, 2, big, {}))
        assert_same(load_checkpoint(disk / "c").checkpoint, checkpoint(0, history=(0,)))
    finally:
        subprocess.run(["umount", disk], check=True)
