"""A pipeline with one image on it, stage by stage: what the child serves, and what a bench runs in its own process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from anima_batch import __version__
from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.ops import Array
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.anima.transformer import Transformer
from anima_batch.backends.base import Backend
from anima_batch.backends.faults import FaultPlan
from anima_batch.errors import BackendError
from anima_batch.job import ImageRequest
from anima_batch.sampling import SamplerState, make_sigmas, sample
from anima_batch.worker.messages import Opened, Opening, StepTaken

CANARY_IMAGES = 8  # as many as one process makes at the most, unless the job says otherwise


class Workbench:
    """The stages of an image, one call each; raises BackendError, ModelSetError or UsageError.

    `plan` is told of each stage as it begins, and `wrap` puts a backend round each of the pipeline's: for tests.
    """

    def __init__(
        self, opening: Opening, plan: FaultPlan | None = None, wrap: Callable[[Backend], Backend] | None = None
    ) -> None:
        self._pipeline = open_pipeline(opening.model_set, opening.backend, opening.run, wrap)
        self._plan = plan or FaultPlan(())
        self._image: tuple[ImageRequest, Transformer] | None = None
        self._canary = self._pipeline.run_canary()
        self._images = 0

    @property
    def opened(self) -> Opened:
        """What the pipeline runs on."""
        backend = self._pipeline.backend
        own = {"numpy": np.__version__, "anima_batch": __version__, "npu_canary": self._canary}
        return Opened(backend.name, {**backend.versions(), **own})

    def encode(self, prompts: Sequence[str]) -> list[Array]:
        """The context of each prompt, (context_rows, C)."""
        self._plan.begin("encode")
        return self._pipeline.encode(prompts)

    def find_warnings(self, prompts: Sequence[str]) -> list[list[str]]:
        """What each prompt says that will not act as its writer may think."""
        return [self._pipeline.warn_about(prompt) for prompt in prompts]

    def prepare(self, request: ImageRequest, conditioning: Conditioning) -> None:
        """Put an image on the bench; its steps and its decoding follow."""
        self._images += 1
        if self._images % CANARY_IMAGES == 0:
            self._check_canary()
        sigmas = make_sigmas(request.schedule, request.steps, request.shift)
        transformer = self._pipeline.make_transformer(sigmas, conditioning, request.width, request.height)
        self._image = (request, transformer)

    def step(self, state: SamplerState) -> StepTaken:
        """The step after the state."""
        assert self._image is not None
        request, transformer = self._image
        self._plan.begin("step", request.seed, state.step + 1)
        timings = self._pipeline.backend.watch.timings
        before = replace(timings)
        after, report = next(sample(request, transformer, state))
        return StepTaken(after, report, timings.since(before), self._pipeline.fallback)

    def decode(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Pixels uint8 (H, W, 3) of latents (16, h, w)."""
        self._plan.begin("decode", None if self._image is None else self._image[0].seed)
        return self._pipeline.decode(latents)

    def _check_canary(self) -> None:
        """Raise BackendError if the NPU computes otherwise than when this process began."""
        if (now := self._pipeline.run_canary()) != self._canary:
            raise BackendError(
                f"npu_canary: the answer to fixed inputs must stay {self._canary}, got {now}: "
                f"the last {CANARY_IMAGES} pictures may be wrong: check power, cooling and driver"
            )

    def close(self) -> None:
        """Release what is open."""
        self._pipeline.close()
