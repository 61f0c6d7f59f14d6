"""The model as the runner sees it: stages that are answered by a child process, started anew when need be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from anima_batch.anima.conditioning import Conditioning
from anima_batch.errors import EnvironmentChangedError, WorkerError
from anima_batch.job import ImageRequest
from anima_batch.sampling import SamplerState, planned_passes
from anima_batch.sampling.state import Array
from anima_batch.worker.deadlines import Deadlines, Kind
from anima_batch.worker.memory import describe_growth, read_memory
from anima_batch.worker.messages import (
    Call,
    Failure,
    Opened,
    Opening,
    Stage,
    StepTaken,
    WorkerFault,
    restore_history,
    settle,
    settle_array,
)
from anima_batch.worker.process import WorkerProcess

STARTS = 3  # in a row that may fail before the run stops: no image is to blame for them
LATENT_PIXELS = 64  # pixels of the picture for each of the latents'


class ModelWorker:
    """A model in a child process, which is begun anew after each fault and after `recycle` images (0: never).

    A stage raises WorkerFault when it failed; the process is gone then, and calling the stage again starts a fresh one
    that is given all it needs. What no fresh process cures stops the run: WorkerError, and what opening the model set
    raises. Use it from the thread that made it: the child dies with that thread.
    """

    def __init__(self, opening: Opening, deadlines: Deadlines, *, recycle: int = 0) -> None:
        self.on_ask: Callable[[float], None] = lambda _seconds: None  # told before each stage how long it may take
        self._opening = opening
        self._deadlines = deadlines
        self._recycle = recycle
        self._process: WorkerProcess | None = None
        self._is_open = False
        self._opened: Opened | None = None  # what the first process said
        self._image: tuple[ImageRequest, Conditioning, tuple[int, ...]] | None = None
        self._is_prepared = False
        self._held: SamplerState | None = None  # the state that the child has too
        self._resident: list[int] = []  # bytes after each image of the process at hand
        self._is_growth_told = False
        self._fallback: str | None = None  # the first one
        self._is_fallback_told = False

    def __enter__(self) -> ModelWorker:
        self._start()  # it imports the runtimes while the caller does something else
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process at hand; None while there is none."""
        return None if self._process is None else self._process.pid

    def open(self) -> Opened:
        """What the model runs on, in a process that is ready."""
        failed = 0
        while not self._is_open:
            self._start()
            try:
                opened = self._ask("open", (self._opening,))
            except WorkerFault as fault:
                failed += 1
                if failed == STARTS:
                    raise WorkerError(f"worker: {STARTS} starts in a row failed: {fault}") from fault
                continue
            self._check_opened(opened)
            self._is_open = True
        assert self._opened is not None
        return self._opened

    def encode(self, prompts: Sequence[str]) -> list[Array]:
        """The context of each prompt, (context_rows, C)."""
        self.open()
        contexts: list[Array] = self._ask("encode", (list(prompts),), work=len(prompts))
        return [settle_array(context) for context in contexts]

    def find_warnings(self, prompts: Sequence[str]) -> list[list[str]]:
        """What each prompt says that will not act as its writer may think."""
        self.open()
        warnings: list[list[str]] = self._ask("find_warnings", (list(prompts),), work=len(prompts))
        return warnings

    def prepare(self, request: ImageRequest, conditioning: Conditioning) -> None:
        """The image whose steps follow; the child is told with the first of them."""
        self._image = (request, conditioning, planned_passes(request))
        self._is_prepared = False

    def step(self, state: SamplerState) -> StepTaken:
        """The step after the state, which is sent only to a process that has not got it."""
        assert self._image is not None
        request, conditioning, passes = self._image
        self.open()
        if not self._is_prepared:
            self._ask("prepare", (request, conditioning))
            self._is_prepared = True
        pixels, computed = request.width * request.height, passes[state.step]
        sent = None if state is self._held else state
        kind: Kind = "step" if computed else "forecast"
        taken: StepTaken = self._ask("step", (sent,), kind, pixels * max(computed, 1))
        self._held = restore_history(settle(taken.state), state)
        self._fallback = self._fallback or taken.fallback
        return replace(taken, state=self._held)

    def decode(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Pixels uint8 (H, W, 3) of latents (16, h, w)."""
        self.open()
        size = LATENT_PIXELS * math.prod(latents.shape[1:])
        pixels: npt.NDArray[np.uint8] = self._ask("decode", (latents,), work=size)
        return pixels

    def tell_fallback(self) -> str | None:
        """Once, when a step was made with fewer graphs open than asked for: why."""
        told = None if self._is_fallback_told else self._fallback
        self._is_fallback_told |= told is not None
        return told

    def end_image(self) -> str | None:
        """Note that an image is behind; recycles the process when its turn has come. A line once it seems to leak."""
        self._held = None
        if self._process is None:
            return None
        self._resident.append(read_memory(self._process.pid).resident or 0)
        notice = None if self._is_growth_told else describe_growth(self._resident)
        self._is_growth_told |= notice is not None
        if self._recycle and len(self._resident) >= self._recycle:
            self.close()
        return notice

    def discard(self) -> None:
        """End the process at once: what it holds is not trusted any more."""
        process = self._forget()
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Let the process end as it should."""
        ready = self._is_open
        process = self._forget()
        if process is not None:
            if ready:
                process.close()
            else:
                process.kill()

    def _start(self) -> None:
        if self._process is None:
            self._process = WorkerProcess()

    def _forget(self) -> WorkerProcess | None:
        process, self._process = self._process, None
        self._is_open = self._is_prepared = False
        self._held = None
        self._resident = []
        return process

    def _ask(self, stage: Stage, arguments: tuple[Any, ...], kind: Kind | None = None, work: float = 1) -> Any:  # noqa: ANN401
        """The stage's value; a process that did not give it is gone afterwards."""
        assert self._process is not None
        process, kind = self._process, kind or stage
        seconds = self._deadlines.allow(kind, work)
        self.on_ask(seconds)
        started = time.monotonic()
        try:
            reply = process.ask(Call(stage, arguments), seconds)
        except WorkerFault:
            self._forget()
            raise
        if reply is None:
            self._forget()
            self._deadlines.miss(kind)
            message = f"the worker process gave no answer to {stage} for {seconds:.0f} s and was ended"
            raise WorkerFault("worker", message, process.output)
        if isinstance(reply, Failure):
            self.discard()
            if reply.error is not None:
                raise reply.error
            raise WorkerFault(reply.kind, reply.message, f"{reply.traceback}\n{process.output}".strip())
        self._deadlines.learn(kind, work, time.monotonic() - started)
        return reply.value

    def _check_opened(self, opened: Opened) -> None:
        """A package that was updated during the run would act on pictures whose manifests name the old one."""
        if self._opened is None:
            self._opened = opened
        if opened != self._opened:
            before = {"backend": self._opened.backend, **self._opened.versions}
            now = {"backend": opened.backend, **opened.versions}
            changed = [f"{key}: {value} -> {now.get(key)}" for key, value in before.items() if now.get(key) != value]
            self.discard()
            raise EnvironmentChangedError(
                f"worker: another runtime than at the run's start ({'; '.join(changed)}): run the same command again"
            )
