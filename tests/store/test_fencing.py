"""Who may write an image's checkpoints, when the one before may still be alive."""

import threading

import numpy as np
import pytest

from anima_batch.errors import StorageError
from anima_batch.store import (
    Checkpoint,
    CheckpointFolder,
    begin_attempt,
    find_folder,
    image_of,
    is_numbered,
    list_folders,
    take_folder,
)

ID = "0123456789ab"


@pytest.fixture
def base(tmp_path):
    return tmp_path / ".checkpoints" / ID


def save(folder, step, generation):
    tensors = {"latents": np.full((1, 4), step, np.float32), f"history.{step}.0": np.full((8,), step, np.float32)}
    folder.save(Checkpoint(generation, step, tensors, {}))


def test_an_image_that_nobody_began_gets_the_first_number(base):
    assert find_folder(base) == base
    assert take_folder(base) == base.with_name(f"{ID}.1")
    assert find_folder(base) == base.with_name(f"{ID}.1")


def test_what_is_taken_over_comes_along(base):
    for number in range(1, 4):
        checkpoints = CheckpointFolder(take_folder(base))
        loaded = checkpoints.load()
        assert (loaded.checkpoint.step if loaded.checkpoint else 0) == number - 1
        save(checkpoints, number, loaded.next_generation)
    assert [path.name for path in list_folders(base)] == [f"{ID}.3"]


def test_a_run_on_one_machine_is_taken_over_and_takes_over(base):
    save(CheckpointFolder(base), 1, 0)
    taken = take_folder(base)
    assert not base.exists()
    assert CheckpointFolder(taken).load().checkpoint.step == 1
    assert is_numbered(taken)
    assert not is_numbered(base)
    assert take_folder(taken).name == f"{ID}.2"


def test_who_wakes_late_cannot_write(base):
    late = CheckpointFolder(take_folder(base))
    save(late, 1, 0)
    owner = CheckpointFolder(take_folder(base))
    save(owner, 2, owner.load().next_generation)
    with pytest.raises(StorageError, match="No such file"):
        save(late, 2, 1)
    assert owner.load().checkpoint.step == 2
    assert owner.load().problems == ()


def test_who_wakes_late_before_its_first_write_cannot_write_either(base):
    late = CheckpointFolder(take_folder(base))
    owner = CheckpointFolder(take_folder(base))
    with pytest.raises(StorageError, match="No such file"):
        save(late, 1, 0)
    with pytest.raises(StorageError, match="No such file"):
        begin_attempt(late.path, 0, "boot")
    save(owner, 3, 0)
    assert list_folders(base) == [owner.path]


def test_a_folder_that_was_taken_and_set_aside_is_begun_anew(base):
    owner = CheckpointFolder(take_folder(base))
    save(owner, 3, 0)
    assert owner.set_aside().name == f"{ID}.1.aside-1"
    save(owner, 1, 0)
    assert CheckpointFolder(find_folder(base)).load().checkpoint.step == 1


def test_two_that_take_at_once_get_two_numbers(base):
    """Four threads, ten times: nobody has another's folder, and the last one has what was saved."""
    save(CheckpointFolder(take_folder(base)), 1, 0)
    taken, start = [], threading.Barrier(4)

    def take():
        start.wait()
        for _ in range(10):
            taken.append(take_folder(base))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(taken)) == len(taken) == 40
    assert CheckpointFolder(find_folder(base)).load().checkpoint.step == 1


@pytest.mark.parametrize(
    ("name", "image"),
    [(ID, ID), (f"{ID}.7", ID), (f"{ID}.aside-1", None), (f"{ID}.7.aside-1", None), (f"{ID}.07", None), ("x", None)],
)
def test_folders_that_were_set_aside_are_no_checkpoints(base, name, image):
    assert image_of(base.with_name(name)) == image


@pytest.mark.parametrize(("name", "numbered"), [(ID, False), (f"{ID}.7", True), (".bench", False), (f"{ID}.x", False)])
def test_only_a_number_makes_it_a_machines(base, name, numbered):
    assert is_numbered(base.with_name(name)) is numbered


def test_another_image_with_a_longer_name_is_left_alone(base):
    other = base.with_name(f"{ID}cd.4")
    other.mkdir(parents=True)
    assert list_folders(base) == []
    assert take_folder(base).name == f"{ID}.1"
    assert other.is_dir()
