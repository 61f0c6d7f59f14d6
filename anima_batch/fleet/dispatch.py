"""Which board makes which image."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from anima_batch.batch import checkpoint_bytes
from anima_batch.environment import changed_environment
from anima_batch.fleet.boards import LEARN_FROM, BoardState, add_newest
from anima_batch.fleet.connection import FleetError
from anima_batch.fleet.crew import Answered, Crew, Ended, Word
from anima_batch.fleet.messages import Assignment, Began, Busy, Idle, Made, Need, Refused, Told
from anima_batch.fleet.outlook import estimate_end
from anima_batch.fleet.recording import give_up, measure_recorded, record
from anima_batch.fleet.roster import Roster, find_begun
from anima_batch.plan import PlannedImage, Rates, Workload
from anima_batch.runner import Event, ImageDone, ImageStarted, Notice, StepDone
from anima_batch.runner.pending import Walk, set_damaged_aside
from anima_batch.runner.space import Reserve

LOOK_SECONDS = 1.0  # between two looks at who is there
TURN_SECONDS = 0.5  # for a word from any board
FIRST_SECONDS = 600.0  # from a board's first word of an image to the next
SILENCE = 1.5  # times what a board allows a stage: by then it has begun the stage anew, and said so
DEATHS = 3  # boards in a row that may be lost over one image without a step
MISTAKES = 2  # images that failed on a board and not elsewhere, until it is left out


@dataclass
class _Running:
    """An image that was given to one of `boards`, addresses by name; `board` is who took it, `silence` in seconds."""

    planned: PlannedImage
    boards: dict[str, str]
    board: str | None = None
    silence: float = 0.0
    allowed: float = FIRST_SECONDS
    is_further: bool = False  # a step was done since it began


class Dispatch:
    """The images of a walk on the boards of a crew; a second crew goes on where the first was lost."""

    def __init__(self, walk: Walk, need: Need, reserve: Reserve) -> None:
        self._walk = walk
        self._need = need
        self._reserve = reserve
        self._queue = deque(walk.pending)
        self._running: dict[str, _Running] = {}
        self._begun = find_begun(walk)
        self._roster = Roster(walk, self._begun)
        self._failed: dict[str, dict[str, Made]] = {}  # request id -> what boards made of it, by name
        self._deaths: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        measured = tuple(entry.measurement for entry in walk.found.values() if entry.measurement)
        self._rates = Rates(measured[-LEARN_FROM:])
        self._left = Workload.of(walk.pending)
        self._recorded = {key[:12] for key, entry in walk.found.items() if entry.progress.status == "done"}

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to make."""
        return not self._queue and not self._running

    def take_back_all(self) -> None:
        """Nobody works for us any more: all that was given away waits again."""
        self._queue.extendleft(running.planned for running in reversed(self._running.values()))
        self._running.clear()
        self._roster.clear()

    def run(self, crew: Crew) -> Iterator[Event]:
        """Give images away and record what comes back, until all is done or a stop is asked for.

        Raises SchedulerLostError, FleetError and StorageError.
        """
        self._crew = crew
        looked, turned = 0.0, time.monotonic()
        while not self.is_done:
            if self._walk.stop:
                for key in self._running:
                    crew.cancel(key)
                return
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                yield from self._look()
            yield from self._assign()
            for word in crew.listen(TURN_SECONDS):
                yield from self._hear(word)
            # Time in which this process did not run either, asleep with its machine, says nothing about the boards.
            now = time.monotonic()
            yield from self._watch(min(now - turned, 4 * TURN_SECONDS))
            turned = now

    def _look(self) -> Iterator[Event]:
        yield from self._roster.look(self._crew)
        for key, running in list(self._running.items()):
            if not any(self._roster.is_there(name, address) for name, address in running.boards.items()):
                yield from self._lose(key, running)
        yield from self._check_stuck()

    def _lose(self, key: str, running: _Running) -> Iterator[Event]:
        """All boards that had the image are gone."""
        self._crew.cancel(key)
        del self._running[key]
        if running.board is not None and not running.is_further:
            self._deaths[running.planned.request_id] += 1
        if self._deaths[running.planned.request_id] < DEATHS:
            self._queue.appendleft(running.planned)
        else:
            yield from self._bury(running, f"{DEATHS} boards in a row were lost over it without a step")

    def _bury(self, running: _Running, problem: str) -> Iterator[Event]:
        name = running.board or min(running.boards)
        examined = self._roster[name].examined
        environment = self._roster.reference if examined is None else examined.environment
        assert environment is not None  # or it would not have been given to any
        yield from self._record(running.planned, give_up(running.planned, name, environment, problem))

    def _check_stuck(self) -> Iterator[Event]:
        """Where boards are there and none of them can make what is left, say so instead of waiting for ever."""
        here, ready = self._roster.here, self._roster.ready
        if self._running or not self._queue or not here or any(board.is_coming for board in here):
            return
        planned = self._queue[0]
        if not ready:
            raise FleetError(
                *(f"{board.name}: {board.fault}" for board in here),
                f"fleet: no board can make the {len(self._queue)} images that wait: mend that, "
                "then run the same command again",
            )
        if self._suitable(planned):
            return
        if kept := self._failed.get(planned.request_id):  # there was to be a second opinion
            self._queue.popleft()
            yield from self._record(planned, next(iter(kept.values())))
            return
        changed = changed_environment(self._begun[planned.request_id], self._roster.reference or {})
        raise FleetError(
            f"{planned.stem}: begun in another environment than any board's ({'; '.join(changed)}): go back to that, "
            "or restart it with --accept-environment"
        )

    # Who gets what.

    def _suitable(self, planned: PlannedImage) -> list[BoardState]:
        """The boards that may make the image: those that can go on with it, where there are any."""
        failed = self._failed.get(planned.request_id, {})
        ready = [board for board in self._roster.ready if board.name not in failed]
        if homes := [board for board in ready if board.steps.get(planned.request_id[:12], 0) > planned.from_step]:
            return homes
        begun = self._begun.get(planned.request_id)
        if begun is None:
            return ready
        if not self._walk.options.accept_environment:
            ready = [b for b in ready if b.examined and not changed_environment(begun, b.examined.environment)]
        return [board for board in ready if board.shares] or ready

    def _assign(self) -> Iterator[Event]:
        """Give images to boards that are free; where several are, Dask chooses."""
        taken = {running.board for running in self._running.values() if running.board}
        coming = [running.boards.keys() for running in self._running.values() if running.board is None]
        free = {board.name for board in self._roster.ready} - taken
        for planned in self._order() if len(free) > len(coming) else ():
            boards = {board.name: board.address for board in self._suitable(planned) if board.name in free}
            if len(boards) > sum(bool(boards.keys() & others) for others in coming):
                self._queue.remove(planned)
                coming.append(boards.keys())
                yield from self._give(planned, boards)
                if len(free) <= len(coming):
                    return

    def _order(self) -> list[PlannedImage]:
        """The images that wait; last those that a board has begun which is not there: it may come back."""
        gone = self._roster.find_gone()
        return sorted(self._queue, key=lambda planned: planned.request_id[:12] in gone) if gone else list(self._queue)

    def _give(self, planned: PlannedImage, boards: dict[str, str]) -> Iterator[Event]:
        if planned.request_id not in self._numbers:
            self._numbers[planned.request_id] = len(self._numbers) + 1
            self._left = self._left.without(planned)
            yield from set_damaged_aside(planned, self._walk.found.get(planned.request_id))
        rates = self._roster[next(iter(boards))].rates
        assignment = Assignment(
            need=self._need,
            planned=planned,
            rates=rates if rates.measurements else self._rates,
            needed_bytes=checkpoint_bytes(planned.image.request, self._walk.batch.model_set),
            accept_environment=self._walk.options.accept_environment,
        )
        self._running[self._crew.give(assignment, list(boards.values()))] = _Running(planned, boards)

    # What they say.

    def _hear(self, word: Word) -> Iterator[Event]:
        if isinstance(word, Answered):
            yield from self._roster.hear(word)
            self._forget_recorded()
        elif isinstance(word, Ended):
            if (running := self._running.pop(word.key, None)) is not None:
                if isinstance(word.result, Made):  # the board need not wait until its picture is written
                    yield from self._assign()
                yield from self._hear_end(word, running)
        else:
            self._roster[word.board].is_silent = False
            if running := self._running.get(word.key):  # else it was given to another meanwhile
                running.silence = 0.0
                yield from self._hear_told(word, running)

    def _hear_told(self, told: Told, running: _Running) -> Iterator[Event]:
        content, planned = told.content, running.planned
        if isinstance(content, Busy):
            running.allowed = content.seconds
        elif isinstance(content, Began):
            running.board, running.allowed, running.is_further = told.board, FIRST_SECONDS, False
            number, total = self._numbers[planned.request_id], len(self._walk.pending)
            steps = planned.image.request.steps
            yield ImageStarted(planned.stem, number, total, steps, content.from_step, told.board)
        elif isinstance(content, StepDone):
            running.is_further = True
            self._deaths.pop(planned.request_id, None)
            board = self._roster[told.board]
            if not board.shares:
                board.steps[planned.request_id[:12]] = content.durable_step
            board.seconds_left = content.image_seconds_left or 0.0
            yield replace(content, board=told.board, batch_seconds_left=self._estimate())
        elif not isinstance(content, Idle):
            yield content

    def _estimate(self) -> float | None:
        """Seconds until all images are done, from each board's own speed."""
        busy = {running.board for running in self._running.values()}
        boards = []
        for board in self._roster.ready:
            alone = self._left.estimate(board.rates if board.rates.measurements else self._rates)
            if alone is None:
                return None
            boards.append((board.seconds_left if board.name in busy else 0.0, alone))
        return estimate_end(boards)

    def _hear_end(self, word: Ended, running: _Running) -> Iterator[Event]:
        result, planned = word.result, running.planned
        name = running.board if result is None else result.board
        if isinstance(result, Made):
            yield from self._judge_result(planned, result)
            return
        if word.is_deadly:
            yield from self._bury(running, word.problem)
            return
        if isinstance(result, Refused):
            yield from self._roster.leave_out(self._roster[result.board], "; ".join(result.lines))
        elif word.problem and name is not None:
            yield from self._roster.leave_out(self._roster[name], word.problem)
        self._queue.appendleft(planned)

    def _judge_result(self, planned: PlannedImage, made: Made) -> Iterator[Event]:
        """Record it; what failed on one board is tried on another first, since the board may be at fault."""
        failed = self._failed.setdefault(planned.request_id, {})
        if made.error is None:
            for name in failed:
                board = self._roster[name]
                board.mistakes += 1
                if board.mistakes == MISTAKES:
                    fault = f"{MISTAKES} images failed there and were made elsewhere: look at its NPU"
                    yield from self._roster.leave_out(board, fault)
        else:
            failed[made.board] = made
            if len(failed) == 1 and self._suitable(planned):
                yield Notice(f"{planned.stem}: failed on {made.board}: {made.error.message}: tried on another board")
                self._queue.appendleft(planned)
                return
        yield from self._record(planned, made)

    def _record(self, planned: PlannedImage, made: Made) -> Iterator[Event]:
        self._failed.pop(planned.request_id, None)
        for event in record(self._walk, self._reserve, planned, made):
            if isinstance(event, ImageDone):
                measured = measure_recorded(self._walk, planned)
                self._roster[made.board].learn(measured)
                self._rates = add_newest(self._rates, measured)
                self._recorded.add(planned.request_id[:12])
            yield event
        self._forget_recorded()

    def _forget_recorded(self) -> None:
        """Let boards remove what they kept of images that are recorded."""
        for board in self._roster.here:
            if recorded := board.steps.keys() & self._recorded:
                for short in recorded:
                    del board.steps[short]
                self._crew.forget(board.address, sorted(recorded))

    def _watch(self, elapsed: float) -> Iterator[Event]:
        """Take images back from boards that have given no sign for longer than they allow themselves."""
        for key, running in list(self._running.items()):
            if running.board is None:
                continue
            running.silence += elapsed
            if running.silence > SILENCE * running.allowed:
                self._crew.cancel(key)
                del self._running[key]
                self._roster[running.board].is_silent = True
                self._queue.appendleft(running.planned)
                where = f"{running.planned.stem} goes to another"
                yield Notice(f"{running.board}: no sign for {running.silence:.0f} s: {where}")
