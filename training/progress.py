"""The loop of a training stage: its steps, kept states, a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from training import workers
from training.run_folder import RunFolder

SAVE_SECONDS = 60.0
LOG_EVERY = 20
VALIDATE_EVERY = 200
_GRADIENT_LIMIT = 1.0


class MovingAverage:
    """Parameters averaged over about the last 1 / (1 - decay) steps (at the start over fewer)."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def update(self, model: nn.Module, step: int) -> None:
        """Takes in the parameters after step number `step`, which counts from 1."""
        decay = min(self.decay, step / (step + 9))
        for name, tensor in model.state_dict().items():
            self.weights[name].lerp_(tensor, 1 - decay)


def cosine_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """The learning rate of step `step`, which counts from 0: up in a line, then down along half a cosine to 2 %."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * float(0.02 + 0.98 * (1 + np.cos(np.pi * share)) / 2)


def finish_step(parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer, loss: Tensor) -> float:
    """One step of the optimiser along the workers' mean gradient; returns their mean loss."""
    parameters = list(parameters)
    norm = workers.average_gradients(parameters)
    for parameter in parameters:
        if parameter.grad is not None and norm > _GRADIENT_LIMIT:
            parameter.grad *= _GRADIENT_LIMIT / norm
    optimizer.step()
    optimizer.zero_grad()
    return workers.average(loss)


@dataclass(frozen=True)
class Progress:
    """A stage's model, optimiser and averaged weights, and the folder they are kept in."""

    folder: RunFolder
    stage: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: MovingAverage

    def run(
        self,
        rank: int,
        steps: int,
        take_step: Callable[[int], float],
        validate: Callable[[int], dict[str, float]],
    ) -> None:
        """Calls take_step(step) for the steps that are missing, from 0; the first worker keeps state and log."""
        start = self._restore(steps)
        started = saved = time.monotonic()
        losses = []
        for step in range(start, steps):
            losses.append(take_step(step))
            self.average.update(self.model, step + 1)
            done, minutes = step + 1, (time.monotonic() - started) / 60
            if rank == 0 and (done % LOG_EVERY == 0 or done == steps):
                values = validate(done) if done % VALIDATE_EVERY == 0 or done == steps else {}
                loss = float(np.mean(losses[-LOG_EVERY:]))
                self.folder.log(self.stage, step=done, steps=steps, minutes=minutes, loss=loss, **values)
            if rank == 0 and (time.monotonic() - saved > SAVE_SECONDS or done == steps):
                self._keep(done, steps)
                saved = time.monotonic()

    def _restore(self, steps: int) -> int:
        """Steps done by an earlier run, whose state is loaded; 0 without one.

        Raises ValueError for a run of another number of steps: the learning rate depends on it.
        """
        state = self.folder.load_state(self.stage)
        if state is None:
            return 0
        if state["steps"] != steps:
            raise ValueError(f"{self.folder.path}: {self.stage} was begun with {state['steps']} steps, not {steps}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.average.weights.update(state["average"])
        return int(state["step"])

    def _keep(self, step: int, steps: int) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.folder.save_state(self.stage, {**state, "average": self.average.weights, "step": step, "steps": steps})
