"""The reserve and the check before the start, on real file systems of a few megabytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from small_disk import SmallDisk

from anima_batch.errors import StorageError
from anima_batch.files import write_atomic
from anima_batch.runner.space import Reserve, check_space, drop_reserve

RESERVE_BYTES = 300_000


def test_the_reserve_is_real_blocks(small_disk: SmallDisk):
    before = small_disk.free_bytes
    reserve = Reserve(small_disk.folder, RESERVE_BYTES)
    assert reserve.make()
    assert before - small_disk.free_bytes >= RESERVE_BYTES
    assert (small_disk.folder / ".reserve").stat().st_size == RESERVE_BYTES


def test_a_write_that_finds_the_disk_full_gets_the_reserve(small_disk: SmallDisk):
    with Reserve(small_disk.folder, RESERVE_BYTES) as reserve:
        small_disk.fill()
        with pytest.raises(StorageError, match="No space left on device"):
            write_atomic(small_disk.folder / "picture", bytes(250_000))
        reserve.retry(lambda: write_atomic(small_disk.folder / "picture", bytes(250_000)))
        assert (small_disk.folder / "picture").read_bytes() == bytes(250_000)
        assert not (small_disk.folder / ".reserve").exists()


def test_a_write_that_needs_more_than_the_reserve_fails_as_before(small_disk: SmallDisk):
    with Reserve(small_disk.folder, RESERVE_BYTES) as reserve:
        small_disk.fill()
        with pytest.raises(StorageError, match="/picture: No space left on device"):
            reserve.retry(lambda: write_atomic(small_disk.folder / "picture", bytes(500_000)))
        with pytest.raises(StorageError, match="/picture: No space left on device"):
            reserve.retry(lambda: write_atomic(small_disk.folder / "picture", bytes(500_000)))


def test_the_reserve_is_made_again_when_there_is_room(small_disk: SmallDisk):
    with Reserve(small_disk.folder, RESERVE_BYTES) as reserve:
        small_disk.fill()
        assert reserve.release()
        assert not reserve.release()
        small_disk.fill()
        assert not reserve.make()
        assert not (small_disk.folder / ".reserve").exists()
        small_disk.empty()
        assert reserve.make()
        assert reserve.make()
        assert (small_disk.folder / ".reserve").stat().st_size == RESERVE_BYTES


def test_a_reserve_that_is_held_stays_and_one_that_is_too_small_is_made_anew(small_disk: SmallDisk):
    Reserve(small_disk.folder, RESERVE_BYTES).make()
    inode = (small_disk.folder / ".reserve").stat().st_ino
    assert Reserve(small_disk.folder, RESERVE_BYTES).make()
    assert (small_disk.folder / ".reserve").stat().st_ino == inode
    assert Reserve(small_disk.folder, 2 * RESERVE_BYTES).make()
    assert (small_disk.folder / ".reserve").stat().st_size == 2 * RESERVE_BYTES


def test_a_reserve_of_holes_is_none(small_disk: SmallDisk):
    (small_disk.folder / ".reserve").touch()
    os.truncate(small_disk.folder / ".reserve", RESERVE_BYTES)
    before = small_disk.free_bytes
    assert Reserve(small_disk.folder, RESERVE_BYTES).make()
    assert before - small_disk.free_bytes >= RESERVE_BYTES


def test_a_reserve_that_a_killed_run_left_can_be_dropped(small_disk: SmallDisk):
    assert not drop_reserve(small_disk.folder)
    Reserve(small_disk.folder, RESERVE_BYTES).make()
    assert drop_reserve(small_disk.folder)
    assert not (small_disk.folder / ".reserve").exists()


def test_no_reserve_is_left_at_the_end(small_disk: SmallDisk):
    with Reserve(small_disk.folder, RESERVE_BYTES):
        assert (small_disk.folder / ".reserve").exists()
    assert not (small_disk.folder / ".reserve").exists()


def test_another_error_than_a_full_disk_is_not_tried_again(tmp_path: Path):
    calls = []

    def write() -> None:
        calls.append(1)
        write_atomic(tmp_path / "gone" / "f", b"")

    with Reserve(tmp_path, 1000) as reserve:
        with pytest.raises(StorageError, match="No such file or directory"):
            reserve.retry(write)
        assert (tmp_path / ".reserve").exists()
    assert len(calls) == 1


def test_too_little_room_is_said_with_what_to_do(small_disk: SmallDisk):
    nothing = small_disk.folder / "begun"
    check_space(small_disk.folder, 1_000_000, nothing)
    small_disk.fill(leave=1_200_000)
    check_space(small_disk.folder, 1_000_000, nothing)
    with pytest.raises(StorageError, match=r"/disk: 1 MB free, the images still to make need about 3 MB: free some sp"):
        check_space(small_disk.folder, 3_000_000, nothing)


def test_a_job_that_had_room_has_it_when_it_goes_on_after_a_kill(small_disk: SmallDisk):
    small_disk.fill(leave=700_000)
    begun = small_disk.folder / "begun"
    begun.mkdir()
    write_atomic(begun / "ckpt.0", bytes(500_000))
    check_space(small_disk.folder, 600_000, begun)
    with pytest.raises(StorageError, match="0 MB free"):
        check_space(small_disk.folder, 600_000, small_disk.folder / "other")


def test_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path):
    with pytest.raises(StorageError, match="/gone: No such file or directory: "):
        check_space(tmp_path / "gone", 0, tmp_path / "begun")
