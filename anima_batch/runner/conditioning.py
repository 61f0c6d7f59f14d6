"""Prompt embeddings: computed once a prompt, kept on disk by what they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np

from anima_batch.anima.ops import Array
from anima_batch.anima.pipeline import Conditioning, Pipeline
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
from anima_batch.store import CorruptError, pack_tensors, unpack_tensors

_TEXT_ROLES = ("qwen.", "t5.", "adapter.")
_RUNTIME = ("anima_batch", "numpy", "onnxruntime", "machine")


def load_conditioning(
    request: ImageRequest, pipeline: Pipeline, folder: Path, environment: Mapping[str, str | None]
) -> Conditioning:
    """The embeddings of the request's prompts, encoded together where they are not in the folder yet.

    The versions of what computes them are part of a file's name, since another version may give other bits.
    """
    runtime = {key: environment[key] for key in _RUNTIME} | {"tokenizers": version("tokenizers")}
    prompts = [request.prompt] if request.guidance_scale == 1.0 else [request.prompt, request.negative_prompt]
    paths = {prompt: folder / f"{_key(prompt, pipeline, runtime)}.embeds" for prompt in prompts}
    make_folder(folder)
    with lock_folder(folder, wait=True):  # all jobs of a workspace share it
        known = {prompt: _read_embeds(path) for prompt, path in paths.items()}
        missing = [prompt for prompt, embeds in known.items() if embeds is None]
        for prompt, made in zip(missing, pipeline.encode(missing) if missing else [], strict=True):
            write_atomic(paths[prompt], pack_tensors("conditioning", {"prompt_embeds": made}, {"prompt": prompt}))
            known[prompt] = made
    embeds = [array for prompt in prompts if (array := known[prompt]) is not None]
    return Conditioning(embeds[0], embeds[1] if len(embeds) > 1 else None)


def _key(prompt: str, pipeline: Pipeline, runtime: Mapping[str, str | None]) -> str:
    model_set = pipeline.model_set
    content = {
        "prompt": prompt,
        "runtime": dict(runtime),
        "text": model_set.description.text.model_dump(),
        "components": model_set.part_digest(*_TEXT_ROLES),
    }
    return sha256_bytes(canonical_json(content).encode())


def _read_embeds(path: Path) -> Array | None:
    """The array of a whole file; a damaged one is set aside and made again."""
    if not path.exists():
        return None
    with storage_errors(path):
        data = path.read_bytes()
    try:
        tensors, _ = unpack_tensors(data, "conditioning", where=str(path))
    except CorruptError:
        set_aside(path)
        return None
    # A matrix product may round differently on memory that is not aligned, and a resumed run must not.
    return np.require(tensors["prompt_embeds"], np.float32, ["C", "A"])
