"""The activities of an image's denoising: what each thread does, and what it waits for."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from anima_batch.board.choice import Choice
from anima_batch.board.engine import Activity, Kind
from anima_batch.board.table import BRANCHES, Branch, Table

Key = tuple[int, int]  # of a session: subgraph, and the stream that has it for itself, else 0


@dataclass(frozen=True)
class Conditions:
    """What a machine may do against the assumptions: its stager and its host's work hold one lock (Python's) in turn;
    opening and releasing a session waits for the accelerator, and it for them.
    """

    one_lock: bool = False
    exclusive_driver: bool = False


class Course:
    """Collects activities step by step, with the sessions that are open."""

    def __init__(self, table: Table, choice: Choice, conditions: Conditions) -> None:
        self.activities: list[Activity] = []
        self.hits = self.misses = 0
        self._table, self._choice, self._conditions = table, choice, conditions
        self._step = 0
        self._before: tuple[int, ...] = ()  # the end of the step before
        self._main: tuple[int, ...] = ()  # what the plain order's only thread did last
        self._idle: tuple[int, ...] = ()  # after what a session is opened on demand
        self._open: OrderedDict[Key, tuple[int, ...]] = OrderedDict()  # last used last -> places to wait for
        self._window: deque[tuple[int, int]] = deque()  # bytes and release of the sessions before, while working ahead

    def add_step(self, streams: Sequence[int]) -> None:
        """A step of so many CFG streams; one of none is forecast."""
        self._step += 1
        if not streams:
            self._before = (self._add("forecast", self._table.forecast_seconds, ("host",), self._before),)
            return
        begin = self._add("begin", self._table.begin_seconds, ("host",), self._before)
        self._main = () if self._choice.interleave else (begin,)
        self._idle = (begin,)
        done = dict.fromkeys(streams, begin)
        for subgraph in range(self._table.blocks * len(BRANCHES)):
            for group in [(stream,) for stream in streams] if self._choice.contexts_per_stream else [tuple(streams)]:
                self._add_use(subgraph, group, done)
        behind = () if self._choice.staging == "ahead" else self._idle  # the stager alone releases behind the step
        self._before = (self._add("end", self._table.end_seconds, ("host",), (*done.values(), *behind)),)

    def close(self) -> None:
        """Release what stayed open."""
        for key in list(self._open):
            self._before = (self._release(key, self._before),)

    def _add_use(self, subgraph: int, group: tuple[int, ...], done: dict[int, int]) -> None:
        """One session's work for a group of streams; `done` is the last work of each on the host."""
        branch = BRANCHES[subgraph % len(BRANCHES)]
        times = self._table.times(branch)
        key = (subgraph, group[0] if self._choice.contexts_per_stream else 0)
        opened = self._ensure_open(key)
        runs, finished = [], []
        for stream in group:
            place = (subgraph, stream)
            after = (done[stream], *self._main, *(() if self._choice.interleave else opened))
            prepared = self._add("prepare", times.prepare_seconds, ("host",), after, *place)
            runs.append(self._add("run", times.run_seconds, (self._core(branch, stream),), (prepared, *opened), *place))
            done[stream] = self._add("finish", times.finish_seconds, ("host",), (runs[-1],), *place)
            finished.append(done[stream])
            self._main = () if self._choice.interleave else (done[stream],)
        self._idle = tuple(runs if self._choice.interleave else finished)
        self._open[key] = (*opened, *self._idle)
        if self._is_closed_after(key):
            release = self._release(key, self._idle)
            self._idle = (release,)
            self._main = self._main if self._choice.interleave or self._choice.staging == "ahead" else (release,)
            self._window.append((times.bytes, release))

    def _is_closed_after(self, key: Key) -> bool:
        staging = self._choice.staging
        return staging in ("on-demand", "ahead") or (staging == "pinned" and self._rank(key) >= self._choice.pinned)

    def _rank(self, key: Key) -> int:
        """The place of a session in a step's order."""
        return key[0] * 2 + key[1] if self._choice.contexts_per_stream else key[0]

    def _ensure_open(self, key: Key) -> tuple[int, ...]:
        """What must have ended before the session can run."""
        if key in self._open:
            self.hits += 1
            self._open.move_to_end(key)
            return self._open[key][:1]
        self.misses += 1
        times = self._table.times(BRANCHES[key[0] % len(BRANCHES)])
        after = self._room(times.bytes) if self._choice.staging == "ahead" else (*self._idle, *self._main)
        if self._choice.staging == "cached" and len(self._open) >= max(1, self._choice.pinned):
            after = (self._release(next(iter(self._open)), after),)
        loaded = self._add("load", times.load_seconds, ("stager", "storage"), after, key[0])
        return (self._add("init", times.init_seconds, ("stager",), (loaded,), key[0]),)

    def _room(self, needed_bytes: int) -> tuple[int, ...]:
        """The release that leaves room for a session of so many bytes."""
        after: tuple[int, ...] = ()
        limit = self._choice.ahead_bytes
        if limit is None:
            limit = self._table.block_bytes * self._choice.cores
        while self._window and sum(size for size, _ in self._window) + needed_bytes > limit:
            after = (self._window.popleft()[1],)
        return after

    def _release(self, key: Key, after: tuple[int, ...]) -> int:
        seconds = self._table.times(BRANCHES[key[0] % len(BRANCHES)]).release_seconds
        return self._add("release", seconds, ("stager",), (*after, *self._open.pop(key)), key[0])

    def _core(self, branch: Branch, stream: int) -> str:
        if self._choice.cores == 1:
            return "core 0"
        return f"core {stream if self._choice.contexts_per_stream else int(branch == 'mlp')}"

    def _add(
        self,
        kind: Kind,
        seconds: float,
        resources: tuple[str, ...],
        after: tuple[int, ...],
        subgraph: int | None = None,
        stream: int | None = None,
    ) -> int:
        """The activity's place in the list."""
        if kind != "run" and self._conditions.one_lock:
            resources = (*resources, "lock")
        if kind in ("init", "release") and self._conditions.exclusive_driver:
            resources = (*resources, *(f"core {core}" for core in range(self._choice.cores)))
        cpus = self._table.run_cpus if kind == "run" else 1.0
        self.activities.append(Activity(kind, seconds, resources, after, cpus, self._step, subgraph, stream))
        return len(self.activities) - 1
