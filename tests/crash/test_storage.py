"""The model of a file system: which states a cut may leave behind."""

import os
import random

import pytest

from crash.recorder import MakeFolder, Open, Remove, Rename, Resize, Sync, Write
from crash.storage import Storage

DRAW = random.Random(1)
OLD = {"d": None, "d/a": b"old"}


def after(*calls, start=OLD):
    storage = Storage(start)
    for call in calls:
        storage.apply(call)
    return storage


def trees(storage, order, limit=1000):
    found = list(storage.possible_trees(order, limit, DRAW))
    return [dict(tree) for number, tree in enumerate(found) if tree not in found[:number]]


def contents(storage, order, path="d/a"):
    return {tree.get(path, "missing") for tree in trees(storage, order)}


def write(path, data, *, sync=True):
    return [Open(path, create=True, truncate=True), Write(path, 0, data), *([Sync(path)] if sync else [])]


RIGHT = [*write("d/a.tmp", b"new"), Rename("d/a.tmp", "d/a"), Sync("d")]


@pytest.mark.parametrize("order", ["ordered", "weak"])
def test_the_right_protocol_ends_in_one_state(order):
    assert trees(after(*RIGHT), order) == [{"d": None, "d/a": b"new"}]


@pytest.mark.parametrize("order", ["ordered", "weak"])
def test_the_right_protocol_shows_the_old_or_the_new_file_at_every_call(order):
    for count in range(len(RIGHT)):
        assert contents(after(*RIGHT[:count]), order) <= {b"old", b"new"}


@pytest.mark.parametrize("order", ["ordered", "weak"])
def test_without_a_sync_the_renamed_file_may_be_empty(order):
    calls = [*write("d/a.tmp", b"new", sync=False), Rename("d/a.tmp", "d/a"), Sync("d")]
    assert contents(after(*calls), order) == {b"", bytes(3), b"new"}


@pytest.mark.parametrize("order", ["ordered", "weak"])
def test_without_the_folders_sync_the_old_file_may_come_back(order):
    assert contents(after(*RIGHT[:-1]), order) == {b"old", b"new"}


def test_only_an_ordered_journal_carries_an_older_rename_with_a_later_sync():
    later = write("d/b", b"b")
    assert contents(after(*RIGHT[:-1], *later), "ordered") == {b"new"}
    assert contents(after(*RIGHT[:-1], *later), "weak") == {b"old", b"new"}


def test_a_folder_whose_parent_was_not_synced_may_go_with_all_that_is_in_it():
    calls = [MakeFolder("d/e"), *write("d/e/f", b"x"), Sync("d/e")]
    assert contents(after(*calls), "weak", "d/e/f") == {"missing", b"x"}
    assert contents(after(*calls, Sync("d")), "weak", "d/e/f") == {b"x"}


def test_removals_are_kept_in_order_by_a_journal_and_in_any_order_without():
    start = {"a": b"1", "b": b"2"}
    storage = after(Remove("a"), Remove("b"), start=start)
    assert sorted(map(sorted, trees(storage, "ordered"))) == [[], ["a", "b"], ["b"]]
    assert sorted(map(sorted, trees(storage, "weak"))) == [[], ["a"], ["a", "b"], ["b"]]


def test_a_renamed_folder_takes_its_files_along():
    storage = after(Rename("d", "e"), Sync("."))
    assert trees(storage, "weak") == [{"e": None, "e/a": b"old"}]


def test_many_changes_are_drawn_from_but_none_and_all_are_there():
    start = {str(number): b"" for number in range(20)}
    storage = after(*map(Remove, start), start=start)
    for order in ("ordered", "weak"):
        found = trees(storage, order, limit=12)
        assert len(found) <= 12
        assert {} in found
        assert start in found


def test_what_programs_see_is_what_a_real_file_system_shows(tmp_path):
    storage, draw = Storage({}), random.Random(7)
    for _ in range(300):
        _do_something(tmp_path, storage, draw)
    seen = {p.relative_to(tmp_path).as_posix(): None if p.is_dir() else p.read_bytes() for p in tmp_path.rglob("*")}
    assert storage.live() == seen


def _do_something(root, storage, draw):
    """One random call, both for real and in the model, where it is possible now."""
    live = storage.live()
    files = [path for path, content in live.items() if content is not None]
    folders = ["", *(f"{path}/" for path, content in live.items() if content is None)]
    fresh = draw.choice(folders) + draw.choice("abcdefgh")
    kind = draw.choice(["write", "write", "resize", "rename", "remove", "folder", "sync"])
    if kind == "folder" and fresh not in live:
        (root / fresh).mkdir()
        storage.apply(MakeFolder(fresh))
    elif kind == "write" and live.get(fresh, b"") is not None:
        (root / fresh).write_bytes(data := draw.randbytes(draw.randrange(9000)))
        for call in write(fresh, data, sync=draw.random() < 0.5):
            storage.apply(call)
    elif kind == "resize" and files:
        os.truncate(root / (path := draw.choice(files)), size := draw.randrange(9000))
        storage.apply(Resize(path, size))
    elif kind == "rename" and files and live.get(fresh, b"") is not None:
        (root / (path := draw.choice(files))).rename(root / fresh)
        storage.apply(Rename(path, fresh))
    elif kind == "remove" and files:
        (root / (path := draw.choice(files))).unlink()
        storage.apply(Remove(path))
    elif kind == "sync":
        storage.apply(Sync(draw.choice([*files, *(folder.rstrip("/") or "." for folder in folders)])))
