"""Which board makes which image."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

from anima_batch.batch import checkpoint_bytes
from anima_batch.environment import changed_environment
from anima_batch.fleet.boards import FIRST_SECONDS, LEARN_FROM, BoardState, Running, add_newest
from anima_batch.fleet.connection import FleetError
from anima_batch.fleet.crew import Answered, Crew, Ended, SchedulerLostError, Word
from anima_batch.fleet.messages import Assignment, Began, Busy, Idle, Made, Need, Refused, Stopped, Told
from anima_batch.fleet.outlook import estimate_batch
from anima_batch.fleet.recording import give_up, measure_recorded, record
from anima_batch.fleet.roster import Roster, find_begun
from anima_batch.plan import PlannedImage, Rates, Workload
from anima_batch.runner import Event, ImageDone, ImageStarted, Notice, StepDone
from anima_batch.runner.pending import Walk, set_damaged_aside
from anima_batch.runner.space import Reserve

LOOK_SECONDS = 1.0  # between two looks at who is there
TURN_SECONDS = 0.5  # for a word from any board
SILENCE = 1.5  # times what a board allows a stage: by then it has begun the stage anew, and said so
UNBEGUN_SECONDS = 60.0  # that an image may wait at a board while another one is free
DEATHS = 3  # boards in a row that may be lost over one image without a step
MISTAKES = 2  # images that failed on a board and not elsewhere, until it is left out


class Dispatch:
    """The images of a walk on the boards of a crew; a second crew goes on where the first was lost."""

    def __init__(self, walk: Walk, need: Need, reserve: Reserve) -> None:
        self._walk = walk
        self._need = need
        self._reserve = reserve
        self._queue = deque(walk.pending)
        self._running: dict[str, Running] = {}
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
            holders = running.boards if running.board is None else (running.board,)
            if not any(self._roster.is_there(name, running.boards[name]) for name in holders):
                self._crew.cancel(key)
                del self._running[key]
                yield from self._lose(running)
        yield from self._check_stuck()

    def _lose(self, running: Running) -> Iterator[Event]:
        """The board that had the image is gone, or all that might have taken it."""
        if running.board is not None and not running.is_further:
            self._deaths[running.planned.request_id] += 1
        if self._deaths[running.planned.request_id] < DEATHS:
            self._queue.appendleft(running.planned)
        else:
            yield from self._bury(running, f"{DEATHS} boards in a row were lost over it without a step")

    def _bury(self, running: Running, problem: str) -> Iterator[Event]:
        name = running.board or min(running.boards)
        examined = self._roster[name].examined
        environment = self._roster.reference if examined is None else examined.environment
        assert environment is not None  # or it would not have been given to any
        yield from self._record(running.planned, give_up(running.planned, name, environment, problem))

    def _check_stuck(self) -> Iterator[Event]:
        """Where boards are there and none of them can make what is left, say so instead of waiting for ever."""
        here = self._roster.here
        if self._running or not self._queue or not here or any(board.is_coming for board in here):
            return
        if any(map(self._suit, self._queue)):
            return
        planned = self._queue[0]
        if not self._roster.ready:
            remedy = (
                f"no board can make the {len(self._queue)} images that wait: mend that, then run the same command again"
            )
            raise FleetError(*(f"{board.name}: {board.fault}" for board in here), f"fleet: {remedy}")
        if kept := self._failed.get(planned.request_id):  # there was to be a second opinion
            self._queue.popleft()
            yield from self._record(planned, next(iter(kept.values())))
            return
        begun, reference = self._begun.get(planned.request_id), self._roster.reference or {}
        of_boards = [board.foreign[short] for board in here if (short := planned.request_id[:12]) in board.foreign]
        changed = of_boards[0] if begun is None else "; ".join(changed_environment(begun, reference))
        raise FleetError(
            f"{planned.stem}: begun in another environment than any board's ({changed}): go back to that, "
            "or restart it with --accept-environment"
        )

    # Who gets what.

    def _suit(self, planned: PlannedImage) -> list[BoardState]:
        return self._roster.find_suitable(planned, self._failed.get(planned.request_id, {}))

    def _assign(self) -> Iterator[Event]:
        """Give images to boards that are free; where several are, Dask chooses."""
        taken = {running.board for running in self._running.values() if running.board}
        coming = [running.boards.keys() for running in self._running.values() if running.board is None]
        free = {board.name for board in self._roster.ready} - taken
        for planned in self._order() if len(free) > len(coming) else ():
            boards = {board.name: board.address for board in self._suit(planned) if board.name in free}
            if len(boards) > sum(bool(boards.keys() & others) for others in coming):
                coming.append(boards.keys())
                yield from self._give(planned, boards)
                if len(free) <= len(coming):
                    return

    def _order(self) -> list[PlannedImage]:
        """The images that wait; last those that a board has begun which is not there: it may come back."""
        gone = self._roster.find_gone()
        return sorted(self._queue, key=lambda planned: planned.request_id[:12] in gone) if gone else list(self._queue)

    def _give(self, planned: PlannedImage, boards: dict[str, str]) -> Iterator[Event]:
        """Give an image that waits to one of the boards; it waits on where the scheduler is lost."""
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
        key = self._crew.give(assignment, list(boards.values()))
        self._queue.remove(planned)
        self._running[key] = Running(planned, boards)

    # What they say.

    def _hear(self, word: Word) -> Iterator[Event]:
        if isinstance(word, Answered):
            yield from self._roster.hear(word)
            self._forget_recorded()
        elif isinstance(word, Ended):
            if (running := self._running.pop(word.key, None)) is not None:
                yield from self._hear_end(word, running)
        else:
            self._roster[word.board].is_silent = False
            if running := self._running.get(word.key):  # else it was given to another meanwhile
                running.silence = 0.0
                yield from self._hear_told(word, running)

    def _hear_told(self, told: Told, running: Running) -> Iterator[Event]:
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
            if board.examined is not None and board.shares:
                self._begun[planned.request_id] = board.examined.environment
            else:
                board.steps[planned.request_id[:12]] = content.durable_step
            board.seconds_left = content.image_seconds_left or 0.0
            busy = {running.board for running in self._running.values()}
            seconds = estimate_batch(self._left, self._rates, self._roster.ready, busy)
            yield replace(content, board=told.board, batch_seconds_left=seconds)
        elif not isinstance(content, Idle):
            yield content

    def _hear_end(self, word: Ended, running: Running) -> Iterator[Event]:
        result = word.result
        if isinstance(result, Made):
            lost = None
            try:
                yield from self._assign()  # the board need not wait until its picture is written
            except SchedulerLostError as error:
                lost = error
            yield from self._judge_result(running.planned, result)
            if lost is not None:
                raise lost
            return
        if isinstance(result, Refused):
            yield from self._roster.leave_out(self._roster[result.board], "; ".join(result.lines))
        elif isinstance(result, Stopped):
            self._roster[result.board].examined = None  # it is about to go
        elif word.problem and not word.is_lost:
            for name in [running.board] if running.board else running.boards:
                yield from self._roster.leave_out(self._roster[name], word.problem)
        if word.is_lost:
            yield from self._lose(running)
        else:
            self._queue.appendleft(running.planned)

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
            if len(failed) == 1 and self._suit(planned):
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
            running.silence += elapsed
            name = running.board
            if name is None:
                yield from self._hurry(key, running)
            elif running.silence > SILENCE * running.allowed:
                self._crew.cancel(key)
                del self._running[key]
                self._roster[name].is_silent = self._roster.is_there(name, running.boards[name])
                self._queue.appendleft(running.planned)
                yield Notice(f"{name}: no sign for {running.silence:.0f} s: {running.planned.stem} goes to another")

    def _hurry(self, key: str, running: Running) -> Iterator[Event]:
        """Give an image that no board has begun for a while to one that is free: the others have another job's."""
        if running.silence < UNBEGUN_SECONDS:
            return
        taken = {name for other in self._running.values() for name in ([other.board] if other.board else other.boards)}
        free = {board.name: board.address for board in self._suit(running.planned) if board.name not in taken}
        if free:
            self._crew.cancel(key)
            del self._running[key]
            self._queue.appendleft(running.planned)
            yield from self._give(running.planned, free)
