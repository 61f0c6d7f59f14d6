"""SIGINT and SIGTERM ask for a stop after the step at hand; a second signal ends the process at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


class StopRequest:
    """Whether a signal has come, and which."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextlib.contextmanager
def catch_stop_signals(acknowledge: Callable[[], None]) -> Iterator[StopRequest]:
    """Note the first signal instead of dying by it; from then on the default action (death) applies again.

    `acknowledge` tells the user that it came, since a step may take minutes. A checkpoint is durable before the next
    step begins, so dying at the second signal loses at most that step.
    """
    request = StopRequest()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: FrameType | None) -> None:
        request.signal = number
        for caught in before:
            signal.signal(caught, signal.SIG_DFL)
        acknowledge()

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
