"""Small files below a root, live or copied."""

import os

import pytest

from anima_batch.doctor.tree import LIBRARY_BYTES, NAMES, TEXT_BYTES, Tree


def test_a_file_is_read_whole_and_its_text_is_trimmed(tmp_path):
    (tmp_path / "model").write_bytes(b"Radxa ROCK 5C\0\n")
    reading = Tree(tmp_path).read("/model")
    assert reading.data == b"Radxa ROCK 5C\0\n"
    assert reading.text == "Radxa ROCK 5C"
    assert (reading.absent, reading.denied) == (False, False)


@pytest.mark.parametrize(("size", "read"), [(TEXT_BYTES, True), (TEXT_BYTES + 1, False)])
def test_what_is_longer_than_the_limit_is_not_read_at_all(size, read, tmp_path):
    (tmp_path / "file").write_bytes(bytes(size))
    reading = Tree(tmp_path).read("/file")
    assert (reading.data is not None) == read
    assert read or reading.complaint == f"/file: longer than {TEXT_BYTES} bytes"


def test_what_the_kernel_makes_up_has_no_size_and_is_read_all_the_same():
    reading = Tree.read(Tree(os.sep), "/proc/self/status")
    assert b"VmRSS" in (reading.data or b"")


def test_a_made_up_file_that_goes_on_and_on_is_given_up_at_the_limit():
    reading = Tree(os.sep).read("/proc/self/status", limit=100)
    assert reading.data is None
    assert "longer than 100 bytes" in reading.complaint


def test_missing_and_broken_files_say_which(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    tree = Tree(tmp_path)
    assert tree.read("/none").absent
    assert tree.read("/file/below").absent
    assert tree.read("/file").complaint == "/file: empty"
    assert tree.read("/folder").complaint == "/folder: not a regular file"
    assert not tree.read("/folder").absent


def test_links_are_followed_within_a_copied_tree_and_not_out_of_it(tmp_path):
    root = tmp_path / "root"
    (root / "sys").mkdir(parents=True)
    (root / "sys/file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (root / "inner").symlink_to("sys/file")
    (root / "outer").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    tree = Tree(root)
    assert tree.read("/inner").text == "inside"
    for path in ("/outer", "/folder/secret", "/../secret"):
        assert tree.read(path).complaint == f"{path}: a link out of the tree"
        assert not tree.has(path)
        assert not tree.usable(path)
    assert tree.names("/folder") == []


def test_the_root_itself_may_be_reached_by_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/file").write_text("here")
    (tmp_path / "link").symlink_to("real")
    assert Tree(tmp_path / "link").read("/file").text == "here"


def test_only_the_root_of_this_machine_is_live(tmp_path):
    (tmp_path / "link").symlink_to("/")
    assert Tree(tmp_path / "link").live
    assert not Tree(tmp_path).live


def test_names_are_sorted_and_there_are_not_too_many(tmp_path):
    for number in range(NAMES + 10):
        (tmp_path / f"{number}").touch()
    names = Tree(tmp_path).names("/")
    assert len(names) == NAMES
    assert names == sorted(names)


def test_a_library_of_the_usual_size_is_within_the_limit():
    assert LIBRARY_BYTES > 8_000_000
