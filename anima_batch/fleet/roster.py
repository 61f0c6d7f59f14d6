"""Which boards are there, and which of them may make a job's images."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping

from anima_batch.environment import changed_environment
from anima_batch.errors import EnvironmentChangedError
from anima_batch.fleet.boards import BoardState, find_reference
from anima_batch.fleet.crew import Answered, Crew
from anima_batch.fleet.messages import Environment, Refused
from anima_batch.plan import PlannedImage
from anima_batch.runner import Event, Notice
from anima_batch.runner.canary import check_canary
from anima_batch.runner.pending import Walk, done_manifests
from anima_batch.store import CheckpointFolder

GATHER_SECONDS = 60.0  # for the boards that are there to answer, before the first image is given


class Roster:
    """The boards by name; `begun` are the environments in which images on shared storage were begun, by request id.

    `reference` is what the boards have in common, None until those that are there have answered.
    """

    def __init__(self, walk: Walk, begun: Mapping[str, Environment]) -> None:
        self.reference: Environment | None = None
        self._walk = walk
        self._begun = begun
        self._boards: dict[str, BoardState] = {}
        self._here: dict[str, str] = {}  # address by name
        self._told: set[str] = set()
        self._started = time.monotonic()

    def __getitem__(self, name: str) -> BoardState:
        """A board that is there, or was."""
        return self._boards[name]

    @property
    def here(self) -> list[BoardState]:
        """All that are there, by name."""
        return [self._boards[name] for name in sorted(self._here)]

    @property
    def ready(self) -> list[BoardState]:
        """Those that may be given an image."""
        return [board for board in self.here if board.is_ready] if self.reference is not None else []

    def find_gone(self) -> set[str]:
        """Short ids of the images whose steps lie with boards that are not there, or have not answered yet."""
        away = (b for b in self._boards.values() if b.name not in self._here or b.is_coming)
        return {short for board in away for short in board.steps}

    def find_suitable(self, planned: PlannedImage, failed: Container[str]) -> list[BoardState]:
        """The boards that may make the image: those that can go on with it, where there are any; none of `failed`."""
        short = planned.request_id[:12]
        accepts = self._walk.options.accept_environment
        ready = [board for board in self.ready if board.name not in failed]
        if homes := [board for board in ready if board.steps.get(short, 0) > planned.from_step]:
            return homes
        ready = [board for board in ready if accepts or short not in board.foreign]
        begun = self._begun.get(planned.request_id)
        if begun is None:
            return ready
        same = [b for b in ready if b.examined and not changed_environment(begun, b.examined.environment)]
        ready = same or (ready if accepts else [])
        return [board for board in ready if board.shares] or ready

    def clear(self) -> None:
        """Nobody is there any more."""
        self._here = {}

    def look(self, crew: Crew) -> Iterator[Event]:
        """See who is there, and ask those that are new what they can do."""
        here = {name: address for address, name in crew.find_boards().items()}
        for name in sorted(self._here.keys() - here.keys()):
            yield Notice(f"{name}: gone")
        for name, address in here.items():
            if self._here.get(name) != address:
                self._boards.setdefault(name, BoardState(name)).join(address)
                crew.examine(address)
        if here and not self._here:
            self._started = time.monotonic()
        self._here = here
        if not here:
            yield from self._tell_once("no board is there: start `anima-batch fleet-worker` on one; waiting")
        yield from self.judge()

    def is_there(self, name: str, address: str) -> bool:
        """Whether the board still is the one at that address."""
        return self._here.get(name) == address

    def hear(self, word: Answered) -> Iterator[Event]:
        """A board told what it can do, or why not."""
        board = next((board for board in self.here if board.address == word.address), None)
        if board is None:
            return
        if isinstance(word.answer, Refused):
            yield from self.leave_out(board, "; ".join(word.answer.lines))
        else:
            board.examined, board.steps = word.answer, dict(word.answer.begun)
            board.foreign = dict(word.answer.foreign)
            storage = "shares this storage" if board.shares else "keeps checkpoints on storage of its own"
            yield Notice(f"{board.name}: ready, {storage}")
            yield from self._compare(board)
        yield from self.judge()

    def judge(self) -> Iterator[Event]:
        """Settle what the boards have in common: once all that are there have answered, or most and the others late."""
        here = self.here
        late = [board.name for board in here if board.is_coming]
        is_late = time.monotonic() - self._started > GATHER_SECONDS
        if late and is_late:
            names = ", ".join(late)
            yield from self._tell_once(f"{names}: no answer yet: busy with another image, or hung; waiting for it")
        if self.reference is not None or (late and not (is_late and 2 * len(late) < len(here))):
            return
        good = [board for board in here if board.is_ready]
        known = [board.examined.environment for board in good if board.examined]
        of_begun = (
            environment
            for environment in self._begun.values()
            if any(not changed_environment(environment, other) for other in known)
        )
        self.reference = next(of_begun, None) or find_reference(good)
        for board in good:
            yield from self._compare(board)

    def leave_out(self, board: BoardState, fault: str) -> Iterator[Event]:
        """Give it nothing more until it joins anew."""
        board.fault = fault
        yield Notice(f"{board.name}: left out: {fault}")

    def _compare(self, board: BoardState) -> Iterator[Event]:
        """Leave out a board that would make other pictures than the others."""
        if self.reference is None or board.examined is None:
            return
        found = board.examined.environment
        different = "; ".join(changed_environment(self.reference, found))
        if self._walk.options.accept_environment:
            if different:
                yield from self._tell_once(f"{board.name}: makes its images in another environment ({different})")
            return
        if different:
            remedy = "make them equal, or run with --accept-environment"
            yield from self.leave_out(board, f"another environment than the others' ({different}): {remedy}")
            return
        try:
            check_canary(done_manifests(self._walk.found), found)
        except EnvironmentChangedError as error:
            yield from self.leave_out(board, str(error))

    def _tell_once(self, line: str) -> Iterator[Event]:
        if line not in self._told:
            self._told.add(line)
            yield Notice(line)


def find_begun(walk: Walk) -> dict[str, Environment]:
    """The environments of checkpoints in the job's folder, by request id."""
    begun: dict[str, Environment] = {}
    for planned in walk.pending:
        if planned.from_step:
            loaded = CheckpointFolder(walk.batch.checkpoint(planned.request_id)).load().checkpoint
            if loaded is not None:
                begun[planned.request_id] = loaded.meta.get("environment", {})
    return begun
