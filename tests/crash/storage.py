"""A file system that knows after each call what is durable, and every state that a power cut may leave."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from crash.contents import possible_contents
from crash.recorder import Call, MakeFolder, Open, Remove, Rename, Resize, Said, Sync, Write

Order = Literal["ordered", "weak"]
Tree: TypeAlias = Mapping[str, bytes | None]  # path -> content, None for a folder

_ROOT = 0

Entry: TypeAlias = tuple[int, str]  # folder's inode number, name
Names: TypeAlias = dict[Entry, int]  # -> inode number


@dataclass
class _File:
    """The durable content, then the contents since that were not synced."""

    versions: list[bytes] = field(default_factory=lambda: [b""])


@dataclass(frozen=True)
class _Change:
    """What one call changed in folders, all at once; None: the entry went. `touched`: inodes whose fsync carries it."""

    entries: Mapping[Entry, int | None]
    touched: frozenset[int]


@dataclass
class _Journal:
    """Names that are durable, and the changes since, oldest first."""

    order: Order
    names: Names = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def sync(self, inode: int, *, is_folder: bool) -> None:
        """What an fsync of the inode makes durable.

        ordered: the journal up to the last change that touches it, as ext4, XFS and btrfs do; weak: the entries of
        the folder and nothing else, which is all that POSIX promises.
        """
        if self.order == "ordered":
            touching = [number for number, change in enumerate(self.pending, start=1) if inode in change.touched]
            count = max(touching, default=0)
            for change in self.pending[:count]:
                _apply(self.names, change)
            del self.pending[:count]
        elif is_folder:
            for change in self.pending:
                own = {entry: target for entry, target in change.entries.items() if entry[0] == inode}
                _apply(self.names, _Change(own, change.touched))
            rests = (
                _Change({e: target for e, target in c.entries.items() if e[0] != inode}, c.touched)
                for c in self.pending
            )
            self.pending = [rest for rest in rests if rest.entries]

    def possible_names(self, limit: int, draw: random.Random) -> list[Names]:
        """Ordered: any number of the oldest changes; weak: any set of them. At most `limit`, none and all included."""
        count = len(self.pending)
        chosen: list[Sequence[int]]
        if self.order == "ordered":
            chosen = [range(length) for length in range(count + 1)]
            chosen = chosen if count < limit else [chosen[0], chosen[-1], *draw.sample(chosen[1:-1], limit - 2)]
        elif 2**count <= limit:
            chosen = [c for size in range(count + 1) for c in itertools.combinations(range(count), size)]
        else:
            shares = [draw.choice((0.2, 0.5, 0.8)) for _ in range(limit - 2)]
            some = [[number for number in range(count) if draw.random() < share] for share in shares]
            chosen = [(), range(count), *some]
        return [self._with(numbers) for numbers in chosen]

    def _with(self, numbers: Sequence[int]) -> Names:
        names = dict(self.names)
        for number in numbers:
            _apply(names, self.pending[number])
        return names


class Storage:
    """The state of a workspace's files; begins with a tree that is durable."""

    def __init__(self, tree: Tree) -> None:
        self._files: dict[int, _File] = {}
        self._folders = {_ROOT}
        self._live: Names = {}
        self._next = itertools.count(1)
        for path in sorted(tree):
            content = tree[path]
            inode = next(self._next)
            self._live[self._entry(path)] = inode
            if content is None:
                self._folders.add(inode)
            else:
                self._files[inode] = _File([content])
        self._journals = {order: _Journal(order, dict(self._live)) for order in ("ordered", "weak")}

    def apply(self, call: Call) -> None:
        """Take one more call."""
        match call:
            case Open():
                self._open(call)
            case Write(path=path, offset=offset, data=data):
                content = self._content(path).ljust(offset, b"\0")
                self._change_content(path, content[:offset] + data + content[offset + len(data) :])
            case Resize(path=path, size=size):
                content = self._content(path)
                if not (call.grow_only and len(content) >= size):
                    self._change_content(path, content[:size].ljust(size, b"\0"))
            case Sync(path=path):
                self._sync(self._inode(path))
            case Rename(path=path, target=target):
                inode = self._inode(path)
                self._change_names({self._entry(path): None, self._entry(target): inode}, {inode})
            case Remove(path=path):
                self._change_names({self._entry(path): None}, {self._inode(path)})
            case MakeFolder(path=path):
                inode = next(self._next)
                self._folders.add(inode)
                self._change_names({self._entry(path): inode}, {inode})
            case Said():
                pass

    def live(self) -> dict[str, bytes | None]:
        """What programs see, as long as no power is cut."""
        return self._tree(self._live, {})

    def possible_trees(self, order: Order, limit: int, draw: random.Random) -> Iterator[dict[str, bytes | None]]:
        """What may be found after a power cut now; all of it or, beyond `limit`, the extremes and what is drawn."""
        for names in (all_names := self._journals[order].possible_names(limit, draw)):
            dirty = [inode for inode in self._reachable_files(names) if len(self._files[inode].versions) > 1]
            share = max(4, limit // len(all_names))
            options = [possible_contents(self._files[inode].versions, share, draw) for inode in dirty]
            yield from self._trees_of(names, dirty, options, share, draw)

    def _trees_of(
        self, names: Names, dirty: list[int], options: list[list[bytes]], share: int, draw: random.Random
    ) -> Iterator[dict[str, bytes | None]]:
        count = 1
        for contents in options:
            count *= len(contents)
        if count <= share:
            choices: Iterator[tuple[bytes, ...]] = itertools.product(*options)
        else:
            extremes = [tuple(self._files[inode].versions[end] for inode in dirty) for end in (0, -1)]
            drawn = (tuple(draw.choice(contents) for contents in options) for _ in range(share - 2))
            choices = itertools.chain(extremes, drawn)
        for chosen in choices:
            yield self._tree(names, dict(zip(dirty, chosen, strict=True)))

    def _open(self, call: Open) -> None:
        entry = self._entry(call.path)
        if entry not in self._live:
            assert call.create, f"{call.path}: opened, but the model has no such file"
            inode = next(self._next)
            self._files[inode] = _File()
            self._change_names({entry: inode}, {inode})
        elif call.truncate and self._content(call.path):
            self._change_content(call.path, b"")

    def _sync(self, inode: int) -> None:
        for journal in self._journals.values():
            journal.sync(inode, is_folder=inode in self._folders)
        if inode in self._files:
            del self._files[inode].versions[:-1]

    def _change_names(self, entries: Mapping[Entry, int | None], touched: set[int]) -> None:
        change = _Change(entries, frozenset(touched | {folder for folder, _ in entries}))
        _apply(self._live, change)
        for journal in self._journals.values():
            journal.pending.append(change)

    def _content(self, path: str) -> bytes:
        return self._files[self._inode(path)].versions[-1]

    def _change_content(self, path: str, content: bytes) -> None:
        self._files[self._inode(path)].versions.append(content)

    def _entry(self, path: str) -> Entry:
        parent, _, name = path.rpartition("/")
        return (self._inode(parent) if parent else _ROOT), name

    def _inode(self, path: str) -> int:
        return _ROOT if path == "." else self._live[self._entry(path)]

    def _reachable_files(self, names: Names) -> list[int]:
        return sorted({inode for inode in self._paths(names).values() if inode in self._files})

    def _tree(self, names: Names, chosen: Mapping[int, bytes]) -> dict[str, bytes | None]:
        """Path -> content; files that are not chosen hold their newest content."""
        return {
            path: None if inode in self._folders else chosen.get(inode, self._files[inode].versions[-1])
            for path, inode in self._paths(names).items()
        }

    def _paths(self, names: Names) -> dict[str, int]:
        """What hangs together from the root, folders before what is in them."""
        children: dict[int, list[tuple[str, int]]] = {}
        for (folder, name), inode in names.items():
            children.setdefault(folder, []).append((name, inode))
        paths: dict[str, int] = {}
        waiting = [("", _ROOT)]
        while waiting:
            prefix, folder = waiting.pop()
            for name, inode in children.get(folder, ()):
                paths[prefix + name] = inode
                if inode in self._folders:
                    waiting.append((f"{prefix}{name}/", inode))
        return paths


def _apply(names: Names, change: _Change) -> None:
    for entry, target in change.entries.items():
        if target is None:
            names.pop(entry, None)
        else:
            names[entry] = target
