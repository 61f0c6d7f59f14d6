"""What a file may hold after a power cut, when not all of its writes were synced."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

BLOCK = 4096  # what the storage writes whole, or not at all


def possible_contents(versions: Sequence[bytes], limit: int, draw: random.Random) -> list[bytes]:
    """What may be found of a file: `versions[0]` is durable, each later one is a state that was not synced.

    Its size may be that of any version, or end at any block between them; each block may be of any version, or zero
    where it was being written. All of them where there are at most `limit`; else the plain ones (each version, the
    newest cut or zeroed from each block on) and others at random.
    """
    sizes = _possible_sizes(versions)
    choices = {size: [_possible_blocks(versions, start, size) for start in range(0, size, BLOCK)] for size in sizes}
    if sum(math.prod(map(len, blocks)) for blocks in choices.values()) <= limit:
        found = {b"".join(blocks): None for size in sizes for blocks in itertools.product(*choices[size])}
        return list(found)
    kept = dict.fromkeys(versions)
    plain = list(_torn(versions[-1]))
    for content in draw.sample(plain, min(len(plain), limit // 2)):
        kept[content] = None
    for _ in range(2 * limit):  # some are drawn twice
        if len(kept) >= limit:
            break
        kept[b"".join(draw.choice(blocks) for blocks in choices[draw.choice(sizes)])] = None
    return list(kept)


def _possible_sizes(versions: Sequence[bytes]) -> list[int]:
    ends = {len(version) for version in versions}
    if not any(version.strip(b"\0") for version in versions):  # room that was reserved: nothing in it can be torn
        return sorted(ends)
    return sorted(ends | set(range(_round_up(min(ends)), max(ends), BLOCK)))


def _possible_blocks(versions: Sequence[bytes], start: int, size: int) -> list[bytes]:
    """The block at `start` of a file of `size`: as any version has it, filled up with zeros."""
    length = min(BLOCK, size - start)
    found = {version[start : start + length].ljust(length, b"\0"): None for version in versions if len(version) > start}
    changed = len(found) > 1 or any(len(version) <= start for version in versions)
    return list(found | {bytes(length): None} if changed else found)


def _torn(newest: bytes) -> Iterator[bytes]:
    """The newest content with its tail cut off, its tail zeroed, or one block zeroed, at each block."""
    for start in range(0, len(newest), BLOCK):
        end = min(start + BLOCK, len(newest))
        yield newest[:start]
        yield newest[:start] + bytes(len(newest) - start)
        yield newest[:start] + bytes(end - start) + newest[end:]


def _round_up(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
