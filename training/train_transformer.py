"""The stage `transformer`: text encoder, adapter and transformer together, by flow matching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anima_batch.convert.tokenizer import read_qwen_tokenizer, read_t5_tokenizer
from training import workers
from training.optimizer import Optimizer
from training.progress import MovingAverage, Progress, cosine_rate, finish_step
from training.run_folder import RunFolder
from training.scenes import draw_lot, list_captions, training_caption
from training.small_tokenizers import train_small_tokenizers
from training.stages import ADAPTER, CONTEXT_ROWS, PICTURES, QWEN, SIZE_NAMES, TRANSFORMER
from training.text_models import Qwen, pad_ids
from training.train_autoencoder import lots_of
from training.transformer import Transformer

BATCH = 48  # of all workers together
RATE, WARMUP = 4e-3, 60
DECAY = 0.995
SHIFT = 3.0  # of the sigmas, as at inference
EMPTY_SHARE = 0.1  # of the captions: what guidance needs


class Model(nn.Module):
    """Everything that is trained together."""

    def __init__(self) -> None:
        super().__init__()
        self.qwen = Qwen(QWEN)
        self.net = Transformer(TRANSFORMER, ADAPTER)

    def forward(self, latents: Tensor, sigmas: Tensor, captions: list[Caption]) -> Tensor:
        """The velocity of noisy latents (B, 16, h, w) at sigmas (B,), each with its caption."""
        ids, known = pad_ids([caption.qwen_ids for caption in captions])
        t5_ids, t5_known = pad_ids([caption.t5_ids for caption in captions])
        states = self.qwen(ids, known)
        context = self.net.llm_adapter(t5_ids, t5_known, states, known, CONTEXT_ROWS)
        velocity: Tensor = self.net(latents, sigmas, context)
        return velocity


@dataclass(frozen=True)
class Caption:
    """A caption's ids; an empty one has none for Qwen ("masked"), and `</s>` alone for T5."""

    qwen_ids: tuple[int, ...]
    t5_ids: tuple[int, ...]


def make_tokenizers(folder: Path) -> int:
    """Writes the two tokenizers below the folder; returns the id of Qwen's empty token."""
    return train_small_tokenizers(folder, list_captions())


def train_transformer(folder: RunFolder, seed: int, steps: int) -> None:
    """Trains for a number of steps, going on where an earlier run was stopped."""
    make_tokenizers(folder.path)
    workers.run_workers(_train_share, folder, seed, steps)


def _train_share(rank: int, folder: RunFolder, seed: int, steps: int) -> None:
    torch.manual_seed(seed)
    model = Model()
    optimizer = Optimizer(model, RATE, plain=model.net.final_layer["linear"].parameters())
    average = MovingAverage(model, DECAY)
    data = _load_share(rank, folder, seed)

    def take_step(step: int) -> float:
        # All workers take the same size at a step, so that none waits for another.
        size = np.random.default_rng((seed, step)).choice(len(SIZE_NAMES), p=np.array(PICTURES) / sum(PICTURES))
        random = np.random.default_rng((seed, rank, step, 1))
        latents, captions = data[size].draw_batch(random, BATCH // workers.WORKERS)
        sigmas, noise = _draw_noise(random, latents.shape)
        level = sigmas[:, None, None, None]
        predicted = model((1 - level) * latents + level * noise, sigmas, captions)
        loss = (predicted - (noise - latents)).square().mean()
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(step, steps, WARMUP, RATE)
        loss.backward()
        return finish_step(model.parameters(), optimizer, loss)

    Progress(folder, "transformer", model, optimizer, average).run(rank, steps, take_step, lambda step: {})


def _draw_noise(random: np.random.Generator, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Sigmas from 0 to 1, evenly spread over a batch and then shifted, and noise."""
    uniform = (random.permutation(shape[0]) + random.random(shape[0])) / shape[0]
    sigmas = SHIFT * uniform / (1 + (SHIFT - 1) * uniform)
    noise = random.standard_normal(tuple(shape), dtype=np.float32)
    return torch.from_numpy(sigmas.astype(np.float32)), torch.from_numpy(noise)


@dataclass(frozen=True)
class _Share:
    """A worker's latents of one size, normalised, and their captions."""

    latents: np.ndarray[Any, np.dtype[np.float16]]
    captions: list[Caption]
    empty: Caption

    def draw_batch(self, random: np.random.Generator, count: int) -> tuple[Tensor, list[Caption]]:
        chosen = random.integers(len(self.latents), size=count)
        told = random.random(count) >= EMPTY_SHARE
        captions = [self.captions[index] if tell else self.empty for index, tell in zip(chosen, told, strict=True)]
        return torch.from_numpy(self.latents[chosen].astype(np.float32)), captions


def _load_share(rank: int, folder: RunFolder, seed: int) -> list[_Share]:
    mean, std = np.asarray(folder.load_array("latent-statistics"), np.float32)[:, None, :, None, None]
    encode = make_encoder(folder.path)
    shares = []
    for size, name in enumerate(SIZE_NAMES):
        raw = np.asarray(folder.load_array(f"latents-{name}-{rank}"), np.float32)
        lots = lots_of(size, rank, seed)
        captions = [encode(training_caption(draw_lot(lot, held_out=False), lot)) for lot in lots]
        shares.append(_Share(((raw - mean) / std).astype(np.float16), captions, encode("")))
    return shares


def make_encoder(folder: Path) -> Callable[[str], Caption]:
    """The function from a text to its ids, by the tokenizers of a run's folder."""
    qwen, t5 = read_qwen_tokenizer(folder / "qwen"), read_t5_tokenizer(folder / "t5")

    def encode(text: str) -> Caption:
        return Caption(tuple(qwen.encode(text, add_special_tokens=False).ids), tuple(t5.encode(text).ids))

    return encode
