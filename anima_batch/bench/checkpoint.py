"""What a step costs beside the model: sampler, digests and checkpoint."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from anima_batch.errors import UsageError
from anima_batch.files import make_folder
from anima_batch.job import FullPolicy, ImageRequest, Policy, SpectrumPolicy
from anima_batch.sampling import Array, Stream, initial_state, pack_state, sample
from anima_batch.store import Checkpoint, CheckpointFolder

OFFICIAL_HIDDEN = 2048  # of the released transformer: the size of a feature history depends on it


@dataclass(frozen=True)
class CheckpointCost:
    """Milliseconds that a step costs beside the model: the sampler with its digests and counts, and the checkpoint."""

    policy: str
    steps: int
    sampler_ms_median: float
    save_ms_median: float
    step_ms_median: float
    step_ms_max: float
    bytes_per_step: int


class FreeModel:
    """A velocity model that costs nothing, so that only the program's own time is left."""

    def __init__(self, tokens: int, shape: tuple[int, ...]) -> None:
        self._features = np.full((tokens, OFFICIAL_HIDDEN), 0.5, np.float32)
        self._velocity = np.full(shape, 0.25, np.float32)

    def features(self, latents: Array, step: int, streams: tuple[Stream, ...]) -> list[Array]:
        """New arrays, as a model gives: a history keeps them."""
        return [self._features * np.float32(step + 1 + len(stream) + latents[0, 0, 0]) for stream in streams]

    def velocity(self, features: Array, step: int) -> Array:
        """Some velocity of the right shape."""
        velocity: Array = self._velocity * (features[0, 0] / np.float32(step + 1))
        return velocity


def bench_checkpoint(folder: Path, width: int, height: int, steps: int) -> Iterator[CheckpointCost]:
    """The cost of a step at a picture size on the folder's disk, for each kind of history; raises UsageError."""
    policies: dict[str, Policy] = {
        "full": FullPolicy(),
        "spectrum, denoised history": SpectrumPolicy(),
        "spectrum, feature history": SpectrumPolicy(forecast="features"),
    }
    target = folder / ".bench-checkpoint"
    for name, policy in policies.items():
        request = make_request(width, height, steps, policy)
        if target.is_dir():  # a bench that was killed left it
            shutil.rmtree(target)
        make_folder(target)
        try:
            yield _measure_steps(name, request, target)
        finally:
            shutil.rmtree(target)


def make_request(width: int, height: int, steps: int, policy: Policy) -> ImageRequest:
    """A picture to measure with; raises UsageError."""
    try:
        return ImageRequest(prompt="bench", seed=1, width=width, height=height, steps=steps, policy=policy)
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(f"bench: {fault['loc'][0]}: {fault['msg']}, got {fault['input']}") from error


def _measure_steps(name: str, request: ImageRequest, folder: Path) -> CheckpointCost:
    first = initial_state(request)
    model = FreeModel(request.width * request.height // 256, first.latents.shape)
    saves, totals, free, written = [], [], [], 0
    reports: list[str] = []
    histories: set[Path] = set()
    checkpoints = CheckpointFolder(folder)
    started = time.perf_counter()
    for state, report in sample(request, model, first):
        sampled = time.perf_counter()
        reports.append(json.dumps(asdict(report)))
        tensors, meta = pack_state(state)
        content = {"sampler": meta, "log": reports}
        checkpoints.save(Checkpoint(state.step, state.step, tensors, content))
        ended = time.perf_counter()
        saves.append(ended - sampled)
        totals.append(ended - started)
        free.append(report.seconds)
        made = set(folder.glob("history.*")) - histories
        histories |= made
        written += sum(path.stat().st_size for path in (folder / f"ckpt.{state.step & 1}", *made))
        started = time.perf_counter()
    return CheckpointCost(
        policy=name,
        steps=request.steps,
        sampler_ms_median=_median_ms(free),
        save_ms_median=_median_ms(saves),
        step_ms_median=_median_ms(totals),
        step_ms_max=max(totals) * 1e3,
        bytes_per_step=written // request.steps,
    )


def _median_ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e3
