"""The stage `export`: a run's averaged weights in the official files, converted as a user would convert them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from anima_batch.convert.build import ConvertOptions, convert_model_set
from anima_batch.files import make_folder, write_atomic
from anima_batch.model_set import ModelSet
from training.autoencoder import official_tensors
from training.run_folder import RunFolder
from training.stages import CONTEXT_ROWS, SIZES, VAE
from training.train_transformer import make_tokenizers

LICENSE = "CC0-1.0 (trained by this project on pictures that it draws)"


def export_model_set(folder: RunFolder, out: Path) -> ModelSet:
    """Writes the three weight files below the run's folder and the model set to `out`, which must not be there yet.

    The files hold float16 for the networks: half the bytes of what was trained, and more digits than bfloat16.
    """
    weights = folder.path / "weights"
    make_folder(weights)
    files = _write_weights(folder, weights)
    empty_token_id = make_tokenizers(folder)
    mean, std = folder.load_array("latent-statistics").tolist()
    options = ConvertOptions(
        transformer=files["transformer"],
        text_encoder=files["text_encoder"],
        vae=files["vae"],
        qwen_tokenizer=folder.path / "qwen",
        t5_tokenizer=folder.path / "t5",
        out=out,
        name="picture-book",
        license=LICENSE,
        sizes=SIZES,
        context_rows=CONTEXT_ROWS,
        latent_mean=tuple(mean),
        latent_std=tuple(std),
        empty_prompt="masked",
        empty_token_id=empty_token_id,
    )
    return convert_model_set(options, lambda role: print(role, flush=True))


def _write_weights(folder: RunFolder, weights: Path) -> dict[str, Path]:
    trained, autoencoder = folder.load_state("transformer"), folder.load_state("vae")
    assert trained is not None
    assert autoencoder is not None
    contents = {
        "transformer": _select(trained["average"], "net.", "net."),
        "text_encoder": _select(trained["average"], "qwen.", "model."),
        "vae": official_tensors(autoencoder["average"], VAE),
    }
    files = {}
    for name, tensors in contents.items():
        files[name] = weights / f"{name}.safetensors"
        halves = {key: tensor.to(torch.float16).contiguous() for key, tensor in tensors.items()}
        write_atomic(files[name], save(halves))
    return files


def _select(tensors: Mapping[str, Tensor], prefix: str, new: str) -> dict[str, Tensor]:
    return {new + name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
