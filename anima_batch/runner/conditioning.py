"""Prompt embeddings: computed once a prompt, kept on disk by what they depend on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.ops import Array
from anima_batch.files import (
    canonical_json,
    lock_folder,
    make_folder,
    set_aside,
    sha256_bytes,
    storage_errors,
    write_atomic,
)
from anima_batch.job import ImageRequest
from anima_batch.model_set import ModelSet
from anima_batch.store import CorruptError, pack_tensors
from anima_batch.store.tensors import read_tensors
from anima_batch.worker import ModelWorker, WorkerFault

_TEXT_ROLES = ("qwen.", "t5.", "adapter.")
_RUNTIME = ("anima_batch", "numpy", "onnxruntime", "machine")


@dataclass(frozen=True)
class PromptEncoder:
    """Where prompts become embeddings, and where these are kept; `tell` gets a line for a file that was set aside.

    The versions of what computes them are part of a file's name, since another version may give other bits.
    """

    worker: ModelWorker
    model_set: ModelSet
    folder: Path
    environment: Mapping[str, str | None]
    tell: Callable[[str], None]


def load_conditioning(request: ImageRequest, encoder: PromptEncoder) -> Conditioning:
    """The embeddings of the request's prompts, encoded together where they are not in the folder yet.

    Raises WorkerFault; embeddings that are not finite are not kept.
    """
    folder, model_set, environment = encoder.folder, encoder.model_set, encoder.environment
    runtime = {key: environment[key] for key in _RUNTIME} | {"tokenizers": version("tokenizers")}
    prompts = [request.prompt] if request.guidance_scale == 1.0 else [request.prompt, request.negative_prompt]
    paths = {prompt: folder / f"{_key(prompt, model_set, runtime)}.embeds" for prompt in prompts}
    make_folder(folder)
    with lock_folder(folder, wait=True):  # all jobs of a workspace share it
        known = {prompt: _read_embeds(path, encoder) for prompt, path in paths.items()}
        missing = [prompt for prompt, embeds in known.items() if embeds is None]
        for prompt, made in zip(missing, encoder.worker.encode(missing) if missing else [], strict=True):
            _check_finite(made, "prompt" if prompt == request.prompt else "negative_prompt")
            write_atomic(paths[prompt], pack_tensors("conditioning", {"prompt_embeds": made}, {"prompt": prompt}))
            known[prompt] = made
    embeds = [array for prompt in prompts if (array := known[prompt]) is not None]
    return Conditioning(embeds[0], embeds[1] if len(embeds) > 1 else None)


def _check_finite(embeds: Array, name: str) -> None:
    if wrong := embeds.size - int(np.count_nonzero(np.isfinite(embeds))):
        raise WorkerFault("non_finite", f"{name}: {wrong} of the {embeds.size} values it is encoded to are not finite")


def _key(prompt: str, model_set: ModelSet, runtime: Mapping[str, str | None]) -> str:
    content = {
        "prompt": prompt,
        "runtime": dict(runtime),
        "text": model_set.description.text.model_dump(),
        "components": model_set.part_digest(*_TEXT_ROLES),
    }
    return sha256_bytes(canonical_json(content).encode())


def _read_embeds(path: Path, encoder: PromptEncoder) -> Array | None:
    """The array of a whole file; anything else is set aside, to be made again. Raises StorageError."""
    if not os.path.lexists(path):
        return None
    try:
        with storage_errors(path):
            embeds = read_tensors(path, "conditioning").tensors.get("prompt_embeds")
        _check_embeds(embeds, encoder.model_set, path)
    except CorruptError as error:
        encoder.tell(f"{error}: set aside as {set_aside(path)}")
        return None
    # A matrix product may round differently on memory that is not aligned, and a resumed run must not.
    return np.require(embeds, np.float32, ["C", "A"])


def _check_embeds(embeds: Array | None, model_set: ModelSet, path: Path) -> None:
    description = model_set.description
    shape = (description.text.context_rows, description.transformer.context_dim)
    if embeds is None or embeds.shape != shape or embeds.dtype != np.float32 or not np.isfinite(embeds).all():
        raise CorruptError(f"{path}: must hold prompt_embeds {shape}, finite float32")
