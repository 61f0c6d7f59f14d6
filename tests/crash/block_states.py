"""The disks that a power cut may leave, made from a log of writes and flushes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crash.logged_device import Entry, Event, Flush, Write, apply
from crash.mounts import BLOCK_BYTES
from crash.oracle import Acknowledged

CACHE_BLOCKS = 64  # of a device that does not do what a flush asks for


@dataclass(frozen=True, eq=False)
class Recording:
    """A disk, what a job wrote to it, and the entry from which on there is a promise.

    `acknowledged` was durable before; `flushes_kept`: whether the device does what a flush asks for.
    """

    name: str
    job: str
    image: bytes
    log: Sequence[Entry]
    first: int
    acknowledged: Acknowledged
    flushes_kept: bool = True


@dataclass(frozen=True)
class Cut:
    """The power goes before entry `index`; of what was not flushed, the writes `lost` never reached the medium."""

    index: int
    lost: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"cut before entry {self.index}" + (f", lost {sorted(self.lost)}" if self.lost else "")


def find_unflushed(recording: Recording, index: int) -> list[int]:
    """The writes before an entry that the device need not have on its medium yet."""
    found: list[int] = []
    for position in range(index - 1, -1 if recording.flushes_kept else recording.first - 1, -1):
        entry = recording.log[position]
        if isinstance(entry, Flush) and recording.flushes_kept:
            break
        if isinstance(entry, Write):
            found.append(position)
    return found if recording.flushes_kept else found[:CACHE_BLOCKS]


def choose_cuts(recording: Recording, moments: random.Random, count: int, *, every_prefix: bool) -> list[Cut]:
    """So many cuts in the log's order, about half with lost writes; with `every_prefix` at least all plain ones.

    Writes that reached the medium in another order are the same as lost ones: what counts is which are there.
    """
    places = range(recording.first, len(recording.log) + 1)
    prefixes = [Cut(index) for index in places]
    chosen = set(prefixes if every_prefix else moments.sample(prefixes, min(len(prefixes), (count + 1) // 2)))
    for _ in range(20 * count):  # most logs allow far more than are asked for
        if len(chosen) >= count:
            break
        chosen.add(_lose_writes(recording, moments.choice(places), moments))
    return sorted(chosen, key=lambda cut: (cut.index, sorted(cut.lost)))


def _lose_writes(recording: Recording, index: int, moments: random.Random) -> Cut:
    """A cut at which all of the unflushed writes are lost, one of them, or each with an even chance."""
    unflushed = find_unflushed(recording, index)
    if not unflushed:
        return Cut(index)
    match moments.choice(("all", "one", "some")):
        case "all":
            return Cut(index, frozenset(unflushed))
        case "one":
            return Cut(index, frozenset({moments.choice(unflushed)}))
    return Cut(index, frozenset(position for position in unflushed if moments.random() < 0.5))


def make_states(recording: Recording, cuts: Sequence[Cut]) -> Iterator[tuple[Cut, bytes, Acknowledged]]:
    """Each cut, given in the log's order, with the disk that it leaves and what the job had said by then."""
    image, acknowledged, done = bytearray(recording.image), recording.acknowledged, 0
    for cut in cuts:
        passed = recording.log[done : cut.index]
        apply(image, passed)
        for event in (entry for entry in passed if isinstance(entry, Event)):
            acknowledged = acknowledged.after(json.loads(event.line))
        done = cut.index
        yield cut, _lose(image, recording, cut), acknowledged


def _lose(image: bytearray, recording: Recording, cut: Cut) -> bytes:
    """The disk on which each block of a lost write has its newest content that was not lost."""
    writes = {position: entry for position, entry in enumerate(recording.log[: cut.index]) if isinstance(entry, Write)}
    kept: dict[int, bytes] = {}
    for block in {writes[position].block for position in cut.lost}:
        kept[block] = recording.image[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
    for position, write in writes.items():
        if write.block in kept and position not in cut.lost:
            kept[write.block] = write.data
    left = bytearray(image)
    apply(left, [Write(block, data) for block, data in kept.items()])
    return bytes(left)
