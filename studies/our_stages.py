"""One stage of this project in a process of its own: `python -m studies.our_stages STAGE FOLDER`, one JSON line."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.config import PATCH
from anima_batch.anima.ops import Array
from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.anima.transformer import Transformer
from anima_batch.anima.vae import decode_raw
from anima_batch.backends.base import Session
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert import sources
from anima_batch.convert.vae import build_decoder
from anima_batch.job import RunSpec
from anima_batch.model_set import load_model_set
from anima_batch.sampling import guide
from studies.full_size import GUIDANCE_SCALE, NEGATIVE_PROMPT, PROMPT, Place

Staging = Literal["resident", "on-demand"]
T = TypeVar("T")


def main() -> None:
    """Prints what the stage found, with its seconds in the order of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    print(json.dumps(STAGES[options.stage](Place(options.folder))))


def encode(place: Place) -> dict[str, Any]:
    """Both prompts' contexts, with everything opened and closed."""
    with closing(_open(place, "on-demand")) as pipeline:
        contexts, seconds = time_rounds(lambda: pipeline.encode([PROMPT, NEGATIVE_PROMPT]), 1)
    np.savez(place.made("contexts"), cond=contexts[0], uncond=contexts[1])
    return {"seconds": seconds}


def step_resident(place: Place) -> dict[str, Any]:
    """One step with guidance; the first round opens all sessions, the second finds them open."""
    return _step(place, "resident", 2)


def step_on_demand(place: Place) -> dict[str, Any]:
    """One step with guidance, each session opened before its run and closed after it."""
    return _step(place, "on-demand", 1)


def _step(place: Place, staging: Staging, rounds: int) -> dict[str, Any]:
    with closing(_open(place, staging)) as pipeline:
        latents, model = _make_model(place, pipeline)

        def take() -> Array:
            cond, uncond = (model.velocity(hidden, 0) for hidden in model.features(latents, 0, ("cond", "uncond")))
            return guide(uncond, cond, GUIDANCE_SCALE)

        velocity, seconds = time_rounds(take, rounds)
    return {"seconds": seconds, "sha256": hashlib.sha256(velocity.tobytes()).hexdigest()}


def products(place: Place) -> dict[str, Any]:
    """The matrix products of such a step and nothing else, by NumPy's BLAS: no float32 step can be faster.

    One block's are taken, in three rounds; the seconds are those of all blocks.
    """
    config = load_model_set(place.model_set).description.transformer
    with np.load(place.inputs) as inputs, np.load(place.made("contexts")) as contexts:
        tokens, rows = inputs["latents"][0].size // PATCH**2, len(contexts["cond"])
    hidden, mlp, heads = config.hidden, 4 * config.hidden, config.hidden // config.head_dim
    shapes = 6 * [(tokens, hidden, hidden)] + 2 * [(rows, config.context_dim, hidden)]  # q, k, v and output, twice
    shapes += [(tokens, hidden, mlp), (tokens, mlp, hidden)]
    for keys in (tokens, rows):
        shapes += heads * [(tokens, config.head_dim, keys), (tokens, keys, config.head_dim)]
    pairs = [(np.ones((m, k), np.float32), np.ones((k, n), np.float32)) for m, k, n in shapes]
    _, seconds = time_rounds(lambda: [a @ b for a, b in 2 * pairs], 3)
    return {"seconds": [config.blocks * min(seconds)]}


def trace(place: Place) -> dict[str, Any]:
    """One conditional pass, its residual stream kept before the first block and after each."""
    with closing(_open(place, "on-demand")) as pipeline:
        latents, model = _make_model(place, pipeline)
        hidden = [model.embed(latents)]
        for block in range(model.config.blocks):
            residual = hidden[-1].copy()
            model.add_blocks([block], [residual], 0, ("cond",))
            hidden.append(residual)
        velocity = model.velocity(hidden[-1], 0)
    np.savez(place.made("trace"), hidden=np.stack(hidden), velocity=velocity)
    return {}


def decode(place: Place) -> dict[str, Any]:
    """The decoder of the model set; its session is opened for it, but not within the time."""
    return _decode(place, load_model_set(place.model_set).path("vae.decoder"), "decoded", 2)


def decode_float32(place: Place) -> dict[str, Any]:
    """The same from weights that are stored as float32: bfloat16 fits into it without loss."""
    path = place.folder / "decoder-float32.onnx"
    vae = sources.open_source(place.weights.vae, sources.VAE)
    path.write_bytes(build_decoder(sources.Tensors(vae, "fp32"))[0])
    return _decode(place, path, "decoded-float32", 1)


def _decode(place: Place, graph: Path, name: str, rounds: int) -> dict[str, Any]:
    config = load_model_set(place.model_set).description.vae
    mean, std = (np.array(values, np.float32)[:, None, None] for values in (config.latent_mean, config.latent_std))
    with np.load(place.inputs) as inputs:
        z = inputs["latents"] * std + mean
    session: Session
    with closing(OnnxBackend().open(graph)) as session:
        picture, seconds = time_rounds(lambda: decode_raw(session, z, None), rounds)
    np.savez(place.made(name), picture=np.clip(picture, -1, 1))  # as Diffusers clips it
    return {"seconds": seconds}


def _open(place: Place, staging: Staging) -> Pipeline:
    return open_pipeline(load_model_set(place.model_set), "onnx", RunSpec(staging=staging))


def _make_model(place: Place, pipeline: Pipeline) -> tuple[Array, Transformer]:
    """The latents (16, h, w), and the transformer at the inputs' sigma as step 0."""
    with np.load(place.inputs) as inputs, np.load(place.made("contexts")) as contexts:
        conditioning = Conditioning(contexts["cond"], contexts["uncond"])
        latents, sigmas = inputs["latents"], np.array([inputs["sigma"], 0], np.float32)
    height, width = (8 * side for side in latents.shape[1:])
    return latents, pipeline.make_transformer(sigmas, conditioning, width, height)


def time_rounds(take: Callable[[], T], rounds: int) -> tuple[T, Sequence[float]]:
    """The last round's result and the seconds of each."""
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        result = take()
        seconds.append(time.perf_counter() - started)
    return result, seconds


STAGES: dict[str, Callable[[Place], dict[str, Any]]] = {
    "encode": encode,
    "step-resident": step_resident,
    "step-on-demand": step_on_demand,
    "products": products,
    "trace": trace,
    "decode": decode,
    "decode-float32": decode_float32,
}

if __name__ == "__main__":
    main()
