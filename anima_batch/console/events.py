"""A run's events: progress bars on a terminal, plain lines elsewhere, JSON lines in a file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from anima_batch.console.results import plan_json, show_json, show_line, summarise_plan
from anima_batch.console.text import format_seconds, printable
from anima_batch.errors import UsageError
from anima_batch.runner import (
    BatchEnded,
    BatchStarted,
    Event,
    ImageDone,
    ImageFailed,
    ImageStarted,
    Notice,
    StepDone,
)


def event_json(event: Event) -> dict[str, Any]:
    """One line of --events."""
    name = type(event).__name__
    if isinstance(event, BatchStarted):
        return {"event": name, **{key: value for key, value in plan_json(event.plan).items() if key != "images"}}
    content = dataclasses.asdict(event)
    return {"event": name, **{key: str(value) if isinstance(value, Path) else value for key, value in content.items()}}


def show_run(events: Iterable[Event], log: Path | None, *, json_result: bool) -> BatchEnded:
    """Show each event as `follow_run` does, then the result on stdout; returns the last event."""
    ended = follow_run(events, log)
    if json_result:
        show_json(event_json(ended))
    else:
        show_line(f"{summarise_end(ended)}; manifests in {ended.manifests}")
    return ended


def follow_run(events: Iterable[Event], log: Path | None = None) -> BatchEnded:
    """Show each event on stderr and as a JSON line of `log`; returns the last event.

    Raises UsageError for a log that cannot be opened. A terminal that is gone or a log on a full disk is given up, not
    the run: the pictures matter more.
    """
    ended = None
    with contextlib.ExitStack() as stack:
        sinks = [stack.enter_context(_Bars()).show if sys.stderr.isatty() else _show_plainly]
        if log is not None:
            sinks.append(functools.partial(_write_event, stack.enter_context(_open_log(log))))
        for event in events:
            for sink in tuple(sinks):
                try:
                    sink(event)
                except (OSError, ValueError):  # ValueError: the stream was closed
                    sinks.remove(sink)
            ended = event
    assert isinstance(ended, BatchEnded)
    return ended


def show_stopping() -> None:
    """Tell that a signal came; called in a signal handler, where nothing but a plain write is safe."""
    with contextlib.suppress(OSError):
        os.write(2, b"\nstopping after this step; a second signal stops at once\n")


def _open_log(path: Path) -> BinaryIO:
    try:
        return path.open("ab", buffering=0)  # nothing is left to write when it is closed, even on a full disk
    except OSError as error:
        raise UsageError(f"--events {path}: must be a file that can be written, got: {error.strerror}") from error


def _write_event(stream: BinaryIO, event: Event) -> None:
    text = json.dumps(event_json(event), ensure_ascii=False)
    stream.write(text.encode(errors="backslashreplace") + b"\n")  # a path need not be UTF-8; JSON has the same escape


def _describe(event: Event) -> str:
    match event:
        case BatchStarted():
            line = summarise_plan(event.plan)
        case ImageStarted():
            resumed = f", goes on after step {event.from_step}" if event.from_step else ""
            where = f" on {event.board}" if event.board else ""
            line = f"[{event.number}/{event.total}] {event.stem}{where}{resumed}"
        case StepDone(report=report):
            kind = f"{report.passes} passes" if report.computed else "forecast"
            left = f"ETA {format_seconds(event.image_seconds_left)}, batch {format_seconds(event.batch_seconds_left)}"
            unsaved = "" if event.durable_step == report.index else ", not saved"
            step = f"step {report.index}/{event.steps}{unsaved}"
            where = f"{event.board}: " if event.board else ""
            line = f"  {where}{step}: {kind}, {report.seconds:.2f} s, |x| <= {report.abs_max or 0:.2f}; {left}"
        case ImageDone():
            line = f"  done in {format_seconds(event.seconds)}: {event.image}"
        case ImageFailed():
            line = f"  FAILED: {event.stem}: {event.message}: see {event.manifest}"
        case Notice():
            line = f"note: {event.message}"
        case BatchEnded():
            line = summarise_end(event)
    return line


def summarise_end(event: BatchEnded) -> str:
    """What came of a run, in one line."""
    stopped = f"; stopped by signal {event.signal}, run the same command to go on" if event.signal else ""
    return (
        f"{event.done} done, {event.skipped} done before, {event.failed} failed, {event.waiting} waiting; "
        f"{format_seconds(event.seconds)}{stopped}"
    )


def _show_plainly(event: Event) -> None:
    if not isinstance(event, BatchEnded):  # that one is the result, for stdout
        print(printable(_describe(event)), file=sys.stderr, flush=True)  # noqa: T201


class _Bars:
    """Progress bars: the batch's images, and the steps of the one at hand, on each board where there are several."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[left]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True, markup=False, highlight=False),
        )
        self._batch: TaskID | None = None
        self._images: dict[str | None, TaskID] = {}  # by board

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, event: Event) -> None:
        """Move the bars; what should stay readable is printed above them."""
        if isinstance(event, BatchStarted):
            self._batch = self._progress.add_task("batch", total=len(event.plan.pending), left="")
        if not isinstance(event, StepDone | ImageStarted | BatchEnded):
            # As Text: a string would have its :names: of emoji replaced.
            self._progress.console.print(Text(printable(_describe(event))))
        if self._batch is None:
            return
        if isinstance(event, ImageStarted):
            if event.board not in self._images:
                self._images[event.board] = self._progress.add_task("image", left="")
            name = f"{event.board}: {event.stem}" if event.board else event.stem
            self._progress.reset(
                self._images[event.board],
                total=event.steps,
                completed=event.from_step,
                description=printable(name)[:48],
                left="",
            )
        elif isinstance(event, StepDone):
            left = f"ETA {format_seconds(event.image_seconds_left)}"
            self._progress.update(self._images[event.board], completed=event.report.index, left=left)
            self._progress.update(self._batch, left=f"ETA {format_seconds(event.batch_seconds_left)}")
        elif isinstance(event, ImageDone | ImageFailed):
            self._progress.advance(self._batch)
