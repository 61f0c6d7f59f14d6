from __future__ import annotations

import os
from pathlib import Path

import pytest

from anima_batch.errors import StorageError
from anima_batch.files import sha256_bytes
from anima_batch.store import Attempts, CheckpointFolder, NewerFormatError, begin_attempt, clear_attempts, read_attempts
from anima_batch.store.tensors import pack_tensors

BOOT = "b" * 36
OTHER_BOOT = "c" * 36


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".checkpoints" / "0123456789ab"


def test_without_a_file_there_was_no_attempt(folder: Path):
    assert read_attempts(folder) == Attempts(0, 0, "", "")


def test_each_start_at_the_same_step_counts(folder: Path):
    for count in (1, 2, 3):
        assert begin_attempt(folder, 4, BOOT) == read_attempts(folder) == Attempts(count, 4, BOOT)
    assert [path.name for path in folder.iterdir()] == ["attempts"]


def test_a_new_step_starts_the_count_anew(folder: Path):
    begin_attempt(folder, 4, BOOT)
    begin_attempt(folder, 4, BOOT)
    assert begin_attempt(folder, 5, BOOT).count == 1
    assert begin_attempt(folder, 0, BOOT).count == 1


def test_a_start_that_ended_with_a_reboot_is_not_counted(folder: Path):
    begin_attempt(folder, 4, BOOT)
    assert begin_attempt(folder, 4, BOOT).count == 2
    assert begin_attempt(folder, 4, OTHER_BOOT).count == 2
    assert begin_attempt(folder, 4, OTHER_BOOT).count == 3


def test_power_cuts_alone_never_add_up(folder: Path):
    assert [begin_attempt(folder, 4, f"boot {number}").count for number in range(10)] == [1] * 10


def test_cleared_attempts_are_gone_and_clearing_again_is_harmless(folder: Path):
    begin_attempt(folder, 4, BOOT)
    clear_attempts(folder)
    clear_attempts(folder)
    assert read_attempts(folder) == Attempts()
    clear_attempts(folder / "gone")


def test_they_go_with_the_checkpoints(folder: Path):
    begin_attempt(folder, 0, BOOT)
    CheckpointFolder(folder).drop()
    assert not folder.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"anima-batch attempts v1 sha256:",
        pack_tensors("checkpoint", {}, {"count": 1, "step": 4, "boot_id": BOOT}),
        pack_tensors("attempts", {}, {"count": 0, "step": 4, "boot_id": BOOT}),
        pack_tensors("attempts", {}, {"count": "1", "step": 4, "boot_id": BOOT}),
        pack_tensors("attempts", {}, {"count": 1, "step": 4}),
    ],
    ids=["empty", "torn", "another kind", "zero", "text", "a field missing"],
)
def test_a_file_that_cannot_be_used_counts_as_none_and_is_set_aside(folder: Path, content: bytes):
    folder.mkdir(parents=True)
    (folder / "attempts").write_bytes(content)
    assert read_attempts(folder).count == 0
    assert (folder / "attempts").read_bytes() == content
    begun = begin_attempt(folder, 4, BOOT)
    assert (begun.count, begun.step) == (1, 4)
    assert begun.problem.startswith(f"{folder}/attempts: ")
    assert begun.problem.endswith(f": set aside as {folder}/attempts.aside-1")
    assert "\n" not in begun.problem
    assert (folder / "attempts.aside-1").read_bytes() == content
    assert begin_attempt(folder, 4, BOOT) == Attempts(2, 4, BOOT)


@pytest.mark.parametrize("kind", ["folder", "link to itself", "dangling link", "pipe"])
def test_what_is_no_file_counts_as_none(folder: Path, kind: str):
    folder.mkdir(parents=True)
    path = folder / "attempts"
    make = {
        "folder": path.mkdir,
        "link to itself": lambda: path.symlink_to("attempts"),
        "dangling link": lambda: path.symlink_to("nowhere"),
        "pipe": lambda: os.mkfifo(path),
    }
    make[kind]()
    assert read_attempts(folder).count == 0
    assert begin_attempt(folder, 4, BOOT).count == 1
    assert read_attempts(folder) == Attempts(1, 4, BOOT)


def test_a_file_of_a_later_version_is_neither_counted_nor_replaced(folder: Path):
    folder.mkdir(parents=True)
    data = later_version(pack_tensors("attempts", {}, {}))
    (folder / "attempts").write_bytes(data)
    for use in (lambda: read_attempts(folder), lambda: begin_attempt(folder, 4, BOOT)):
        with pytest.raises(NewerFormatError, match=r"/attempts: format must be at most v1, got v2"):
            use()
    assert (folder / "attempts").read_bytes() == data


def later_version(data: bytes) -> bytes:
    body = data.partition(b"\n")[2]
    digest = sha256_bytes(b"anima-batch attempts v2\n" + body)
    return f"anima-batch attempts v2 sha256:{digest}\n".encode() + body


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(StorageError, match="/a: File exists: "):
        begin_attempt(tmp_path / "a", 0, BOOT)
