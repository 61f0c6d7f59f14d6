"""The stages `scenes`, `vae` and `latents`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from anima_batch.anima.config import VAE_FACTOR
from training import workers
from training.autoencoder import Autoencoder, psnr
from training.drawing import draw_scene
from training.optimizer import Optimizer
from training.progress import MovingAverage, Progress, cosine_rate, finish_step
from training.run_folder import RunFolder
from training.scenes import draw_lot
from training.stages import HELD_OUT_PICTURES, HELD_OUT_SEED, PICTURES, SIZE_NAMES, SIZES, VAE

BATCH = 16  # crops of a step, of all workers together
CROP = 64
LARGE_SHARE = 0.1  # of the steps, the last ones, see larger crops
LARGE_CROP, LARGE_BATCH = 128, 4
RATE, WARMUP = 4e-3, 50
KL_WEIGHT = 3e-4  # of the divergence of a latent value, in nats
DECAY = 0.995


def draw_pictures(folder: RunFolder, seed: int) -> None:
    """Draws the pictures of each size, a share for each worker, which trains on that alone."""
    workers.run_workers(_draw_share, folder, seed)


def lots_of(size: int, rank: int, seed: int) -> range:
    """The numbers of the scenes that a worker draws of a size."""
    first = seed * 1_000_000 + size * 100_000
    return range(first + rank, first + PICTURES[size], workers.WORKERS)


def _draw_share(rank: int, folder: RunFolder, seed: int) -> None:
    for size, (name, (width, height)) in enumerate(zip(SIZE_NAMES, SIZES, strict=True)):
        if not folder.has_array(f"pictures-{name}-{rank}"):
            lots = lots_of(size, rank, seed)
            pictures = [draw_scene(draw_lot(lot, held_out=False), width, height, lot) for lot in lots]
            folder.save_array(f"pictures-{name}-{rank}", np.stack(pictures))


def train_autoencoder(folder: RunFolder, seed: int, steps: int) -> None:
    """Trains the autoencoder for a number of steps, going on where an earlier run was stopped."""
    workers.run_workers(_train_share, folder, seed, steps)


def _train_share(rank: int, folder: RunFolder, seed: int, steps: int) -> None:
    torch.manual_seed(seed)
    model = Autoencoder(VAE)
    _order_channels_last(model)
    optimizer = Optimizer(model, RATE)
    average = MovingAverage(model, DECAY)
    pictures = [folder.load_array(f"pictures-{name}-{rank}") for name in SIZE_NAMES]
    progress = Progress(folder, "vae", model, optimizer, average)

    def take_step(step: int) -> float:
        random = np.random.default_rng((seed, rank, step))
        large = step >= (1 - LARGE_SHARE) * steps
        crops = _cut_crops(pictures, random, LARGE_CROP if large else CROP, LARGE_BATCH if large else BATCH)
        noise = torch.from_numpy(random.standard_normal(_latent_shape(crops), dtype=np.float32))
        again, mean, log_variance = model(crops, noise)
        error = again - crops
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).mean() / 2
        loss = error.abs().mean() + error.square().mean() / 2 + KL_WEIGHT * divergence
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(step, steps, WARMUP, RATE)
        loss.backward()
        return finish_step(model.parameters(), optimizer, loss)

    def validate(step: int) -> dict[str, float]:
        return {"psnr": measure_psnr(average_model(Autoencoder(VAE), average)) if rank == 0 else 0.0}

    progress.run(rank, steps, take_step, validate)


def _latent_shape(pictures: Tensor) -> tuple[int, int, int, int]:
    return len(pictures), VAE.latent_channels, pictures.shape[2] // VAE_FACTOR, pictures.shape[3] // VAE_FACTOR


def _cut_crops(pictures: list[Any], random: np.random.Generator, size: int, batch: int) -> Tensor:
    """One worker's part of a batch of square crops from pictures of any size."""
    crops = []
    for kind in random.choice(len(SIZES), batch // workers.WORKERS, p=np.array(PICTURES) / sum(PICTURES)):
        picture = pictures[kind][random.integers(len(pictures[kind]))]
        top, left = (random.integers(length - size + 1) for length in picture.shape[:2])
        crops.append(picture[top : top + size, left : left + size])
    return as_tensor(np.stack(crops))


def as_tensor(pictures: Any) -> Tensor:  # noqa: ANN401 - a NumPy array, in memory or not
    """uint8 (B, H, W, 3) as float32 (B, 3, H, W) in -1 to 1."""
    values = torch.from_numpy(np.array(pictures)).permute(0, 3, 1, 2)
    return (values.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)


def _order_channels_last(model: Autoencoder) -> None:
    """In memory, as the pictures are; the convolutions are faster so."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # the stubs leave memory_format out


def average_model(model: Autoencoder, average: MovingAverage) -> Autoencoder:
    """The model with the averaged weights."""
    model.load_state_dict(average.weights)
    _order_channels_last(model)
    return model.eval()


@torch.no_grad()
def measure_psnr(model: Autoencoder) -> float:
    """dB between held-out pictures and what the decoder makes of their latents' means, each clamped, 8-bit."""
    errors = []
    for width, height in SIZES:
        lots = range(HELD_OUT_SEED, HELD_OUT_SEED + HELD_OUT_PICTURES)
        pictures = as_tensor(np.stack([draw_scene(draw_lot(lot, held_out=True), width, height, lot) for lot in lots]))
        for part in torch.split(pictures, 16):
            again = model.decode(model.encoder(part)[0]).clamp(-1, 1)
            errors.append(float((again - part).square().mean()))
    return psnr(sum(errors) / len(errors))


def measure_latents(folder: RunFolder) -> None:
    """Encodes all pictures: means of the latents as float16, and each channel's mean and standard deviation."""
    workers.run_workers(_encode_share, folder)
    latents = [folder.load_array(f"latents-{name}-{rank}") for name in SIZE_NAMES for rank in range(workers.WORKERS)]
    values = [np.asarray(part, np.float64).transpose(1, 0, 2, 3).reshape(VAE.latent_channels, -1) for part in latents]
    joined = np.concatenate(values, axis=1)  # (16, all pixels of all pictures)
    folder.save_array("latent-statistics", np.stack([joined.mean(axis=1), joined.std(axis=1)]))


@torch.no_grad()
def _encode_share(rank: int, folder: RunFolder) -> None:
    state = folder.load_state("vae")
    assert state is not None
    model = Autoencoder(VAE)
    model.load_state_dict(state["average"])
    _order_channels_last(model)
    model.eval()
    for name in SIZE_NAMES:
        if not folder.has_array(f"latents-{name}-{rank}"):
            pictures = folder.load_array(f"pictures-{name}-{rank}")
            parts = [pictures[start : start + 32] for start in range(0, len(pictures), 32)]
            means = [model.encoder(as_tensor(part))[0].numpy().astype(np.float16) for part in parts]
            folder.save_array(f"latents-{name}-{rank}", np.concatenate(means))
