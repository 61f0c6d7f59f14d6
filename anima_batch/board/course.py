"""The activities of an image's denoising: what each thread does, and what it waits for."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from anima_batch.board.choice import Choice
from anima_batch.board.engine import Activity, Kind
from anima_batch.board.table import BRANCHES, Branch, Table

AHEAD_SESSIONS = 2  # that wait to be taken: a short run between two long ones hides no whole lifecycle
Key = tuple[int, int]  # of a session: subgraph, and the stream that has it for itself, else 0


@dataclass(frozen=True)
class Conditions:
    """What a machine may do against the assumptions: its stager and its host's work hold one lock (Python's) in turn;
    opening and releasing a session waits for the accelerator, and it for them.
    """

    one_lock: bool = False
    exclusive_driver: bool = False


class Course:
    """Collects activities step by step, with the sessions that are open.

    A step's sessions are opened when a core comes to them, or ahead by the stager, which begins with the step and ends
    with it; it does one thing after the other, so a session behind is released before another is opened.
    """

    def __init__(self, table: Table, choice: Choice, conditions: Conditions) -> None:
        self.activities: list[Activity] = []
        self.hits = self.misses = 0
        self._table, self._choice, self._conditions = table, choice, conditions
        self._step = 0
        self._before: tuple[int, ...] = ()  # the end of the step before
        self._main: tuple[int, ...] = ()  # what the plain order's only thread did last
        self._idle: tuple[int, ...] = ()  # after what a session is opened on demand
        self._begun: tuple[int, ...] = ()  # after what the stager begins
        self._open: OrderedDict[Key, tuple[int, ...]] = OrderedDict()  # last used last -> places to wait for
        self._waiting: deque[tuple[int, int]] = deque()  # bytes and taking of sessions opened ahead

    def add_step(self, streams: Sequence[int]) -> None:
        """A step of so many CFG streams; one of none is forecast."""
        self._step += 1
        if not streams:
            self._before = (self._add("forecast", self._table.forecast_seconds, ("host",), self._before),)
            return
        begin = self._add("begin", self._table.begin_seconds, ("host",), self._before)
        self._idle = (begin,)
        self._follow(begin)
        self._begun = ()
        self._waiting.clear()
        done = dict.fromkeys(streams, begin)
        for subgraph in range(self._table.blocks * len(BRANCHES)):
            for group in [(stream,) for stream in streams] if self._choice.contexts_per_stream else [tuple(streams)]:
                self._add_use(subgraph, group, done)
        after = (*done.values(), *self._idle)
        self._before = (self._add("end", self._table.end_seconds, ("host",), after),)

    def close(self) -> None:
        """Release what stayed open."""
        for key in list(self._open):
            self._before = (self._release(key, self._before),)

    def _follow(self, place: int) -> None:
        """In the plain order one thread does everything but what the stager does."""
        self._main = () if self._choice.interleave else (place,)

    def _add_use(self, subgraph: int, group: tuple[int, ...], done: dict[int, int]) -> None:
        """One session's work for a group of streams; `done` is the last work of each on the host."""
        branch = BRANCHES[subgraph % len(BRANCHES)]
        times = self._table.times(branch)
        key = (subgraph, group[0] if self._choice.contexts_per_stream else 0)
        for stream in group:
            after = (done[stream], *self._main)
            done[stream] = self._add("prepare", times.prepare_seconds, ("host",), after, subgraph, stream)
            self._follow(done[stream])
        self._begun = self._begun or tuple(done[stream] for stream in group)
        opened = self._ensure_open(key, (done[group[0]], *self._main))
        runs: list[int] = []
        for stream in group:
            core = self._core(branch, stream)
            after = (done[stream], *self._main)
            if not runs and self._choice.staging == "ahead":
                after = (self._add("take", 0.0, (core,), after, subgraph),)
                self._waiting.append((times.bytes, after[0]))
            runs.append(self._add("run", times.run_seconds, (core,), (*after, *opened), subgraph, stream))
            self._follow(runs[-1])
        self._idle = tuple(runs)
        self._open[key] = (*opened, *runs)
        if self._is_closed_after(key):
            self._idle = (self._release(key, self._idle),)
            if self._choice.staging != "ahead":
                self._follow(self._idle[0])
        for run, stream in zip(runs, group, strict=True):
            after = (run, *self._main)
            done[stream] = self._add("finish", times.finish_seconds, ("host",), after, subgraph, stream)
            self._follow(done[stream])

    def _is_closed_after(self, key: Key) -> bool:
        staging = self._choice.staging
        return staging in ("on-demand", "ahead") or (staging == "pinned" and self._rank(key) >= self._choice.pinned)

    def _rank(self, key: Key) -> int:
        """The place of a session in a step's order."""
        return key[0] * 2 + key[1] if self._choice.contexts_per_stream else key[0]

    def _ensure_open(self, key: Key, needed: tuple[int, ...]) -> tuple[int, ...]:
        """What must have ended before the session can run; `needed` is after what it is asked for."""
        if key in self._open:
            self.hits += 1
            self._open.move_to_end(key)
            return self._open[key][:1]
        self.misses += 1
        times = self._table.times(BRANCHES[key[0] % len(BRANCHES)])
        after = self._room(times.bytes) if self._choice.staging == "ahead" else (*needed, *self._idle)
        if self._choice.staging == "cached" and len(self._open) >= max(1, self._choice.pinned):
            after = (self._release(next(iter(self._open)), after),)
        loaded = self._add("load", times.load_seconds, ("stager", "storage"), after, key[0])
        return (self._add("init", times.init_seconds, ("stager",), (loaded,), key[0]),)

    def _room(self, needed_bytes: int) -> tuple[int, ...]:
        """After what the stager may open a session of so many bytes: the taking of one before it, or its own begin."""
        after = self._begun
        while self._waiting and (
            len(self._waiting) >= AHEAD_SESSIONS
            or sum(size for size, _ in self._waiting) + needed_bytes > self._choice.ahead_bytes
        ):
            after = (self._waiting.popleft()[1],)
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
        if kind not in ("run", "take") and self._conditions.one_lock:
            resources = (*resources, "lock")
        if kind in ("init", "release") and self._conditions.exclusive_driver:
            resources = (*resources, *(f"core {core}" for core in range(self._choice.cores)))
        cpus = {"run": self._table.run_cpus, "take": 0.0}.get(kind, 1.0)
        self.activities.append(Activity(kind, seconds, resources, after, cpus, self._step, subgraph, stream))
        return len(self.activities) - 1
