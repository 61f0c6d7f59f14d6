"""What a file may hold after a cut."""

import random

from crash.contents import BLOCK, possible_contents

OLD, NEW = b"o" * (2 * BLOCK), b"n" * (2 * BLOCK)
DRAW = random.Random(1)


def test_a_synced_file_holds_what_was_written():
    assert possible_contents([NEW], 100, DRAW) == [NEW]


def test_a_new_file_that_was_not_synced_may_be_empty_cut_zeroed_or_whole():
    found = possible_contents([b"", NEW], 100, DRAW)
    block, zeros = NEW[:BLOCK], bytes(BLOCK)
    assert set(found) == {b"", block, zeros, block + block, block + zeros, zeros + block, zeros + zeros}


def test_a_file_written_in_place_may_mix_old_new_and_zero_blocks():
    found = possible_contents([OLD, b"", NEW], 100, DRAW)
    o, n, z = OLD[:BLOCK], NEW[:BLOCK], bytes(BLOCK)
    assert {content for content in found if len(content) == 2 * BLOCK} == {a + b for a in (o, n, z) for b in (o, n, z)}
    assert b"" in found


def test_a_block_that_was_not_written_stays():
    assert set(possible_contents([OLD, OLD[:BLOCK] + NEW[:BLOCK]], 100, DRAW)) == {
        OLD[:BLOCK] + last for last in (OLD[:BLOCK], NEW[:BLOCK], bytes(BLOCK))
    }


def test_the_last_block_of_a_file_is_as_short_as_its_size_says():
    assert set(possible_contents([b"", b"short"], 100, DRAW)) == {b"", b"short", bytes(5)}


def test_a_large_file_keeps_the_plain_cases_and_stays_within_the_limit():
    newest = b"x" * (40 * BLOCK)
    found = possible_contents([b"", newest], 50, DRAW)
    assert len(found) == len(set(found)) == 50
    assert b"" in found
    assert newest in found


def test_reserved_room_has_two_sizes_only():
    assert possible_contents([b"", bytes(40 * BLOCK)], 50, DRAW) == [b"", bytes(40 * BLOCK)]
