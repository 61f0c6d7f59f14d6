"""Prompt embeddings: computed once a prompt, kept on disk by what they depend on."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.ops import Array
from anima_batch.batch import EmbedsFolder
from anima_batch.files import (
    lock_folder,
    make_folder,
    set_aside,
    storage_errors,
    write_atomic,
)
from anima_batch.job import ImageRequest
from anima_batch.model_set import ModelSet
from anima_batch.store import CorruptError, pack_tensors
from anima_batch.store.tensors import read_tensors
from anima_batch.worker import ModelWorker, WorkerFault


@dataclass(frozen=True)
class PromptEncoder:
    """Where prompts become embeddings, and where these are kept; `tell` gets a line for a file that was set aside."""

    worker: ModelWorker
    model_set: ModelSet
    embeds: EmbedsFolder
    tell: Callable[[str], None]


def load_conditioning(request: ImageRequest, encoder: PromptEncoder) -> tuple[Conditioning, bool]:
    """The embeddings of the request's prompts, encoded together where they are not in the folder yet, and if any was.

    Raises WorkerFault; embeddings that are not finite are not kept.
    """
    prompts = request.prompts
    paths = {prompt: encoder.embeds.path(prompt) for prompt in prompts}
    make_folder(encoder.embeds.folder)
    with lock_folder(encoder.embeds.folder, wait=True):  # all jobs of a workspace share it
        known = {prompt: _read_embeds(path, encoder) for prompt, path in paths.items()}
        missing = [prompt for prompt, embeds in known.items() if embeds is None]
        for prompt, made in zip(missing, encoder.worker.encode(missing) if missing else [], strict=True):
            _check_finite(made, "prompt" if prompt == request.prompt else "negative_prompt")
            write_atomic(paths[prompt], pack_tensors("conditioning", {"prompt_embeds": made}, {"prompt": prompt}))
            known[prompt] = made
    embeds = [array for prompt in prompts if (array := known[prompt]) is not None]
    return Conditioning(embeds[0], embeds[1] if len(embeds) > 1 else None), bool(missing)


def _check_finite(embeds: Array, name: str) -> None:
    if wrong := embeds.size - int(np.count_nonzero(np.isfinite(embeds))):
        raise WorkerFault("non_finite", f"{name}: {wrong} of the {embeds.size} values it is encoded to are not finite")


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
