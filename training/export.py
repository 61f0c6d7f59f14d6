"""The stage `export`: a run's averaged weights in the official files, then the model set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from anima_batch.files import make_folder, write_atomic
from anima_batch.model_set import ModelSet
from training.autoencoder import official_tensors
from training.picture_book import make_picture_book
from training.run_folder import RunFolder
from training.stages import VAE
from training.train_transformer import make_tokenizers


def export_model_set(folder: RunFolder, out: Path) -> ModelSet:
    """Writes the official files below the run's folder and the model set to `out`, which must not be there yet."""
    weights = folder.path / "weights"
    make_folder(weights)
    _write_weights(folder, weights)
    _write_settings(folder, weights)
    return make_picture_book(weights, out)


def _write_weights(folder: RunFolder, weights: Path) -> None:
    """The three files hold float16: half the bytes of what was trained, and more digits than bfloat16."""
    trained, autoencoder = folder.load_state("transformer"), folder.load_state("vae")
    assert trained is not None
    assert autoencoder is not None
    contents = {
        "transformer": _select(trained["average"], "net.", "net."),
        "text_encoder": _select(trained["average"], "qwen.", "model."),
        "vae": official_tensors(autoencoder["average"], VAE),
    }
    for name, tensors in contents.items():
        halves = {key: tensor.to(torch.float16).contiguous() for key, tensor in tensors.items()}
        write_atomic(weights / f"{name}.safetensors", save(halves))


def _write_settings(folder: RunFolder, weights: Path) -> None:
    """Tokenizers, latent statistics, and the token of an empty prompt."""
    empty_token_id = make_tokenizers(weights)
    mean, std = folder.load_array("latent-statistics").tolist()
    settings = {"latent_mean": mean, "latent_std": std, "empty_token_id": empty_token_id}
    write_atomic(weights / "settings.json", (json.dumps(settings, indent=1) + "\n").encode())


def _select(tensors: Mapping[str, Tensor], prefix: str, new: str) -> dict[str, Tensor]:
    return {new + name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
