"""What an image on a board is made with: when it stops, what is said meanwhile, and where its result goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anima_batch.fleet.messages import Busy, Made
from anima_batch.plan import Measurement, PlannedImage, Rates
from anima_batch.runner import Event, StopRequest
from anima_batch.runner.record import ImagePaths, Outcome
from anima_batch.store import ErrorRecord, Pixels


@dataclass
class Heartbeat:
    """Says how long the next word may take, where that is not what was said last: a step is as long as the last one."""

    send: Callable[[Busy], None]
    told: float = 0.0

    def __call__(self, seconds: float) -> None:
        """A stage begins that may take so long."""
        if not self.told / 2 < seconds <= self.told:
            self.told = 1.25 * seconds  # so that a step that takes a little longer than any before needs no word
            self.send(Busy(self.told))


class ImageStop(StopRequest):
    """True once the board or the image is to stop."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        super().__init__()
        self._is_wanted = is_wanted

    def __bool__(self) -> bool:
        return not self._is_wanted()


@dataclass
class Collector:
    """Keeps what the driver is to record."""

    board: str
    environment: dict[str, str | None]
    made: Made | None = None

    @property
    def verdict(self) -> str:
        """What came of the image, in a word."""
        if self.made is None:
            return "stopped"
        return f"failed: {self.made.error.message}" if self.made.error else "made"

    def prepare(self) -> None:
        """Nothing is written here in the end."""

    def finish(self, planned: PlannedImage, paths: ImagePaths, outcome: Outcome, pixels: Pixels) -> Iterator[Event]:
        """Keep a picture."""
        self.made = Made(self.board, self.environment, outcome, pixels)
        yield from ()

    def give_up(
        self, planned: PlannedImage, paths: ImagePaths, outcome: Outcome, error: ErrorRecord, details: str
    ) -> Iterator[Event]:
        """Keep why there is none."""
        self.made = Made(self.board, self.environment, outcome, error=error, details=details)
        yield from ()


@dataclass(frozen=True)
class Forecast:
    """Seconds left of the image, by this board's own times; of the batch the driver knows."""

    rates: Rates
    planned: PlannedImage

    def __call__(self, measured: Measurement, step: int) -> tuple[float | None, float | None]:
        """After so many steps, which took what was measured."""
        rates = self.rates if self.rates.measurements else self.rates.add(measured)
        return rates.estimate(self.planned.work_after(step)), None
