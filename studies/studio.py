"""Pictures made in one process: the models stay open, and each prompt is encoded once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.anima.sessions import open_session
from anima_batch.anima.vae import decode
from anima_batch.backends.base import Session
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.job import ImageRequest, RunSpec
from anima_batch.measures import Picture
from anima_batch.model_set import load_model_set
from anima_batch.sampling import initial_state, make_sigmas, sample


@dataclass(frozen=True)
class Shot:
    """A picture as `anima-batch run` makes it, what its latents spread over, and the passes that it took."""

    picture: Picture
    latent_std: float
    passes: int


@dataclass(frozen=True)
class Studio:
    """An open model set, its decoder, and the conditioning of the prompts that it was opened for."""

    pipeline: Pipeline
    decoder: Session
    conditionings: dict[str, Conditioning]

    def shoot(self, request: ImageRequest) -> Shot:
        """The picture of a request whose prompt is known and whose negative prompt is empty."""
        sigmas = make_sigmas(request.schedule, request.steps, request.shift)
        conditioning = self.conditionings[request.prompt]
        model = self.pipeline.make_transformer(sigmas, conditioning, request.width, request.height)
        passes = 0
        for state, report in sample(request, model, initial_state(request)):
            latents, passes = state.latents, passes + report.passes
        picture = decode(self.decoder, latents, self.pipeline.model_set.description.vae)
        return Shot(picture, float(latents.std()), passes)


@contextmanager
def open_studio(model_set: Path, prompts: Sequence[str]) -> Iterator[Studio]:
    """A studio of one thread for these prompts with an empty negative prompt."""
    run = RunSpec(staging="resident", threads=1)
    with closing(open_pipeline(load_model_set(model_set), "onnx", run)) as pipeline:
        negative, *contexts = pipeline.encode(["", *prompts])
        conditionings = {
            prompt: Conditioning(context, negative) for prompt, context in zip(prompts, contexts, strict=True)
        }
        with closing(open_session(OnnxBackend(run.threads), pipeline.model_set, "vae.decoder")) as decoder:
            yield Studio(pipeline, decoder, conditionings)
