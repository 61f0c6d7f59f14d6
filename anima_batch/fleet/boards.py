"""What the driver knows of each board."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from anima_batch.environment import DECISIVE
from anima_batch.fleet.messages import Environment, Examined
from anima_batch.plan import Measurement, PlannedImage, Rates

FIRST_SECONDS = 600.0  # from a board's first word of an image to the next
LEARN_FROM = 20  # the newest images, for a speed


@dataclass
class BoardState:
    """A board that has joined, now or before.

    `examined` is None until it answered; `fault`: why it is left out; `is_silent`: it gave no sign for too long, and
    gets nothing until it does. `steps`: what is done of images that lie on its own storage, by short id; `foreign` as
    in Examined; `mistakes`: images that failed here and not elsewhere; `seconds_left`: of the image at hand.
    """

    name: str
    address: str = ""
    examined: Examined | None = None
    fault: str = ""
    is_silent: bool = False
    steps: dict[str, int] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    mistakes: int = 0
    rates: Rates = field(default_factory=Rates)
    seconds_left: float = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether it may be given an image."""
        return self.examined is not None and not self.fault and not self.is_silent

    @property
    def is_coming(self) -> bool:
        """Whether it may be ready later on, if nobody does anything about it."""
        return self.is_silent or (self.examined is None and not self.fault)

    @property
    def shares(self) -> bool:
        """Whether the driver's storage is its own, too."""
        return self.examined is not None and self.examined.shares

    def join(self, address: str) -> None:
        """It is there, perhaps again, and has to show anew what it can do."""
        self.address, self.examined, self.fault, self.is_silent = address, None, "", False

    def learn(self, measurement: Measurement) -> None:
        """It made an image."""
        self.rates = add_newest(self.rates, measurement)


@dataclass
class Running:
    """An image that was given to one of `boards`, addresses by name; `board` is who took it, `silence` in seconds."""

    planned: PlannedImage
    boards: dict[str, str]
    board: str | None = None
    silence: float = 0.0
    allowed: float = FIRST_SECONDS
    is_further: bool = False  # a step was done since it began


def add_newest(rates: Rates, measurement: Measurement) -> Rates:
    """The rates of the newest images, this one among them: a board grows slower and faster."""
    return Rates((*rates.measurements, measurement)[-LEARN_FROM:], rates.simulated)


def find_reference(boards: Iterable[BoardState]) -> Environment | None:
    """The environment that most boards have, of the first by name where as many have another; None without any."""
    known = [board.examined.environment for board in sorted(boards, key=lambda board: board.name) if board.examined]
    if not known:
        return None
    counts = Counter(map(_decisive, known))
    return max(known, key=lambda environment: counts[_decisive(environment)])


def _decisive(environment: Environment) -> tuple[str | None, ...]:
    return tuple(environment.get(key) for key in DECISIVE)
