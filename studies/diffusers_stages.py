"""Stages by Diffusers from the same files: `python -m studies.diffusers_stages STAGE FOLDER`, one JSON line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anima_batch.anima.ops import Array
from anima_batch.convert.inputs import LATENT_MEAN, LATENT_STD
from anima_batch.convert.tokenizer import read_qwen_tokenizer, read_t5_tokenizer
from studies.diffusers_models import load_text_conditioner, load_text_encoder, load_transformer, load_vae
from studies.full_size import GUIDANCE_SCALE, NEGATIVE_PROMPT, PROMPT, Place
from studies.our_stages import time_rounds


def main() -> None:
    """Prints what the stage found, with its seconds in the order of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with torch.no_grad():
        print(json.dumps(STAGES[options.stage](Place(options.folder))))


def encode(place: Place) -> dict[str, Any]:
    """How far our contexts of both prompts are from theirs."""
    qwen, t5 = (read(place.model_set / name) for name, read in _TOKENIZERS.items())
    ids = [(qwen.encode(text, add_special_tokens=False).ids, t5.encode(text).ids) for text in (PROMPT, NEGATIVE_PROMPT)]
    encoder = load_text_encoder(place.weights.text_encoder)
    states = [encoder(input_ids=torch.tensor([row])).last_hidden_state for row, _ in ids]
    del encoder
    conditioner = load_text_conditioner(place.weights.transformer)
    contexts = [
        conditioner(
            source_hidden_states=source,
            target_input_ids=torch.tensor([row]),
            target_attention_mask=torch.ones(1, len(row), dtype=torch.long),
            source_attention_mask=torch.ones(source.shape[:2], dtype=torch.long),
        )[0].numpy()
        for source, (_, row) in zip(states, ids, strict=True)
    ]
    with np.load(place.made("contexts")) as ours:
        return compare(np.stack([ours["cond"], ours["uncond"]]), np.stack(contexts))


def step(place: Place) -> dict[str, Any]:
    """One step with guidance, the whole model in memory; the first round warms up."""
    x, sigma, contexts = _read_inputs(place)
    transformer = load_transformer(place.weights.transformer)

    def take() -> Tensor:
        cond, uncond = (transformer(x, sigma, context, return_dict=False)[0] for context in contexts)
        velocity: Tensor = uncond + GUIDANCE_SCALE * (cond - uncond)
        return velocity

    return {"seconds": time_rounds(take, 2)[1]}


def trace(place: Place) -> dict[str, Any]:
    """How far our residual stream is from theirs before the first block and after each, and the velocity."""
    x, sigma, contexts = _read_inputs(place)
    transformer = load_transformer(place.weights.transformer)
    with np.load(place.made("trace")) as kept:
        ours, velocity = kept["hidden"], kept["velocity"]
    rows: list[dict[str, float]] = []

    def note_first(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        rows.append(compare(ours[0], arguments[0][0].numpy()))

    def note(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        rows.append(compare(ours[len(rows)], output[0].numpy()))

    transformer.transformer_blocks[0].register_forward_pre_hook(note_first)
    for block in transformer.transformer_blocks:
        block.register_forward_hook(note)
    theirs = transformer(x, sigma, contexts[0], return_dict=False)[0]
    return {"blocks": rows, "velocity": compare(velocity, theirs[0, :, 0].numpy())}


def decode(place: Place) -> dict[str, Any]:
    """The decoder, after a round that warms up."""
    vae = load_vae(place.weights.vae, LATENT_MEAN, LATENT_STD)
    mean, std = (torch.tensor(values)[:, None, None] for values in (LATENT_MEAN, LATENT_STD))
    with np.load(place.inputs) as inputs:
        z = (torch.from_numpy(inputs["latents"]) * std + mean)[None, :, None]
    picture, seconds = time_rounds(lambda: vae.decode(z, return_dict=False)[0][0, :, 0], 2)
    np.savez(place.made("decoded-diffusers"), picture=picture.numpy())
    return {"seconds": seconds}


def compare(ours: Array, theirs: Array) -> dict[str, float]:
    """Cosine, largest difference, and largest value of the other side; float64 inside."""
    a, b = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    return {
        "cosine": float(a @ b / np.sqrt((a @ a) * (b @ b))),
        "difference": float(np.abs(a - b).max()),
        "largest": float(np.abs(b).max()),
    }


def _read_inputs(place: Place) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Latents (1, 16, 1, h, w), sigma (1,) in float32, which Diffusers does not round, and our two contexts."""
    with np.load(place.inputs) as inputs, np.load(place.made("contexts")) as contexts:
        x, sigma = torch.from_numpy(inputs["latents"])[None, :, None], torch.tensor([float(inputs["sigma"])])
        return x, sigma, [torch.from_numpy(contexts[name])[None] for name in ("cond", "uncond")]


_TOKENIZERS = {"qwen": read_qwen_tokenizer, "t5": read_t5_tokenizer}
STAGES: dict[str, Callable[[Place], dict[str, Any]]] = {
    "encode": encode,
    "step": step,
    "trace": trace,
    "decode": decode,
}

if __name__ == "__main__":
    main()
