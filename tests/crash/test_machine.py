"""A machine's disk, copied while it is stopped, and a machine that QEMU cannot start."""

import random

import pytest

from crash.machine import Guest, Kept, Machine, copy_sparsely

PAGE = 4096


@pytest.mark.parametrize("seed", range(20))
def test_a_copied_disk_has_every_page_where_it_was(tmp_path, seed):
    draw = random.Random(seed)
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    pages = draw.sample(range(64), draw.randint(0, 64))  # single ones and runs, with holes between
    with disk.open("wb") as stream:
        stream.truncate(64 * PAGE)
        for page in pages:
            stream.seek(page * PAGE)
            stream.write(draw.randbytes(PAGE))
    copy_sparsely(disk, copy)
    assert copy.read_bytes() == disk.read_bytes()
    assert copy.stat().st_blocks <= disk.stat().st_blocks


def test_a_machine_that_ends_before_it_runs_says_why(tmp_path):
    disk, nothing = tmp_path / "disk", tmp_path / "nothing"
    disk.write_bytes(bytes(1 << 20))
    nothing.touch()
    machine = Machine(Guest(nothing, nothing, disk), tmp_path / "machine", disk, Kept(nothing, disk, ""))
    with pytest.raises(RuntimeError, match="could not load kernel"), machine:
        pass
