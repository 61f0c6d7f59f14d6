"""From a prompt to the transformer's context: two tokenizers, Qwen3, and the adapter."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from anima_batch.anima.ops import Array
from anima_batch.anima.sessions import open_session
from anima_batch.backends.base import Backend, check_output
from anima_batch.errors import ModelSetError
from anima_batch.model_set import ModelSet, TextConfig

_MASKED_SCORE = -1e9  # its exponential is 0 in float32; unlike -inf it cannot turn into NaN in any runtime

# What other tools read as instructions. A single pair of round brackets is not here: Danbooru tags such as
# "miku (vocaloid)" have one.
_SYNTAX = (
    (re.compile(r"(?<!\\)\((?:\\.|[^()\\])*:\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)\s*\)"), "weights are not applied"),
    (re.compile(r"(?<!\\)\(\s*\((?:\\.|[^()\\])*\)\s*\)"), "weights are not applied"),
    (re.compile(r"(?<!\\)\[[^\[\]]+\]"), "weights are not applied"),
    (re.compile(r"\bBREAK\b"), "a prompt is never split"),
    (re.compile(r"<(?:lora|lyco|hypernet):[^<>]*>", re.IGNORECASE), "no LoRA is loaded from a prompt"),
    (re.compile(r"\\[()]"), "brackets need no backslash"),
)


@dataclass(frozen=True)
class PromptTokens:
    """The ids that are encoded, at most `context_rows` of each, and how many the prompt has uncut."""

    qwen_ids: tuple[int, ...]
    t5_ids: tuple[int, ...]
    qwen_count: int
    t5_count: int


@dataclass(frozen=True)
class PromptTokenizer:
    """The two tokenizers of a model set."""

    qwen: Tokenizer
    t5: Tokenizer
    config: TextConfig


def load_tokenizer(model_set: ModelSet) -> PromptTokenizer:
    """The model set's tokenizers; raises ModelSetError."""
    qwen, t5 = (_read_tokenizer(model_set.path(f"{role}.tokenizer", ".json")) for role in ("qwen", "t5"))
    return PromptTokenizer(qwen, t5, model_set.description.text)


def tokenize(prompt: str, tokenizer: PromptTokenizer) -> PromptTokens:
    r"""The ids of the prompt taken literally: brackets, `BREAK` and backslashes are text.

    Qwen's have neither BOS nor EOS; T5's end with `</s>`, which a cut keeps as the last. An empty prompt has only that
    for T5, and for Qwen the model set's `empty_token_id` ("token", as ComfyUI) or no ids ("masked", as in training).
    Blanks alone are not an empty prompt: T5 drops them, but Qwen has tokens for them.
    """
    qwen_ids = tokenizer.qwen.encode(prompt, add_special_tokens=False).ids
    t5_ids = tokenizer.t5.encode(prompt).ids
    config, rows = tokenizer.config, tokenizer.config.context_rows
    counts = len(qwen_ids), len(t5_ids)
    if not qwen_ids and config.empty_prompt == "token":
        qwen_ids = [config.empty_token_id]
    if len(t5_ids) > rows:
        t5_ids = [*t5_ids[: rows - 1], t5_ids[-1]]
    return PromptTokens(tuple(qwen_ids[:rows]), tuple(t5_ids), *counts)


def prompt_warnings(prompt: str, tokenizer: PromptTokenizer) -> list[str]:
    """A line for each kind of other tools' syntax, all of it encoded as plain text, and one for a prompt cut short."""
    matches = ((pattern.search(prompt), reason) for pattern, reason in _SYNTAX)
    warnings = [f"{_shorten(match[0])!r} is encoded as plain text: {reason}" for match, reason in matches if match]
    tokens, rows = tokenize(prompt, tokenizer), tokenizer.config.context_rows
    if max(tokens.qwen_count, tokens.t5_count) > rows:
        warnings.append(
            f"the prompt has {tokens.qwen_count} Qwen and {tokens.t5_count} T5 tokens, "
            f"of which the first {rows} are used: shorten it"
        )
    return warnings


def encode_prompts(prompts: Sequence[str], model_set: ModelSet, backend: Backend) -> list[Array]:
    """The context of each prompt, zeros after its rows; Qwen is loaded once, and released before the adapter is.

    Raises ModelSetError or BackendError.
    """
    tokenizer = load_tokenizer(model_set)
    tokens = [tokenize(prompt, tokenizer) for prompt in prompts]
    del tokenizer  # tens of megabytes that the graphs may need
    return encode_tokens(tokens, model_set, backend)


def encode_tokens(prompts: Sequence[PromptTokens], model_set: ModelSet, backend: Backend) -> list[Array]:
    """The contexts of tokenized prompts, each float32 (context_rows, C)."""
    states = run_qwen([prompt.qwen_ids for prompt in prompts], model_set, backend)
    return run_adapter([prompt.t5_ids for prompt in prompts], states, model_set, backend)


def run_qwen(prompts: Sequence[Sequence[int]], model_set: ModelSet, backend: Backend) -> list[Array]:
    """Qwen's last hidden states after the final norm, (1, tokens, D) each; one row of zeros for a prompt without ids.

    The adapter has no bias on keys and values, so zero states add exactly what fully masked ones do: nothing.
    """
    config = model_set.description.text
    embedded = [gather_rows(model_set.path("qwen.embedding", ".safetensors"), ids or [0]) for ids in prompts]
    states = [np.zeros_like(x) for x in embedded]
    if not any(prompts):
        return states
    with contextlib.closing(open_session(backend, model_set, "qwen.model")) as session:
        for index, (ids, x) in enumerate(zip(prompts, embedded, strict=True)):
            if ids:
                cos, sin = rotary_1d(len(ids), config.head_dim, config.rope_theta)
                output = session.run({"x": x, "cos": cos, "sin": sin, "mask": causal_mask(len(ids))})
                states[index] = check_output("qwen.model", output, x.shape)
    return states


def run_adapter(
    prompts: Sequence[Sequence[int]], states: Sequence[Array], model_set: ModelSet, backend: Backend
) -> list[Array]:
    """The adapter's rows for T5 ids that attend to Qwen's states, zero-padded to (context_rows, C).

    The padding is part of the model: the transformer attends to the zero rows as it was trained to.
    """
    config, contexts = model_set.description.text, []
    path = model_set.path("adapter.embedding", ".safetensors")
    with contextlib.closing(open_session(backend, model_set, "adapter.model")) as session:
        for ids, source in zip(prompts, states, strict=True):
            cos, sin = rotary_1d(len(ids), config.adapter_head_dim, config.adapter_rope_theta)
            states_cos, states_sin = rotary_1d(source.shape[1], config.adapter_head_dim, config.adapter_rope_theta)
            feeds = {"x": gather_rows(path, ids), "cos": cos, "sin": sin}
            output = session.run({**feeds, "states": source, "states_cos": states_cos, "states_sin": states_sin})
            rows = check_output("adapter.model", output, feeds["x"].shape)[0]
            contexts.append(np.pad(rows, ((0, config.context_rows - len(rows)), (0, 0))))
    return contexts


def gather_rows(path: Path, ids: Sequence[int]) -> Array:
    """Rows of the file's one tensor `weight` as float32 (1, len(ids), D), read one by one: the table is not loaded.

    Raises ModelSetError for a file that cannot be read and for an id beyond the table.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            table = file.get_slice("weight")
            count = table.get_shape()[0]
            if max(ids) >= count:
                raise ModelSetError(
                    f"{path}: token ids must be below {count}, got {max(ids)}: convert the model set again"
                )
            rows = {index: table[index : index + 1] for index in set(ids)}
    except (OSError, SafetensorError) as error:
        raise ModelSetError(f"{path}: {error}: run `anima-batch models verify`") from error
    return np.concatenate([rows[index] for index in ids]).astype(np.float32)[None]


def rotary_1d(length: int, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosines and sines of position · theta^(-2i/d) for positions 0 ... length - 1, float32 (1, length, d/2) each.

    For the half-split rotation, whose pair i is (i, i + d/2). In float64 inside: float32 angles are off by 3e-5 at 512.
    """
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)  # (d/2,)
    angles = np.arange(length, dtype=np.float64)[None, :, None] * frequencies  # (1, L, d/2)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def causal_mask(length: int) -> Array:
    """(1, length, length), added to scores: 0 where a position may look, which is itself and those before it."""
    return np.triu(np.full((1, length, length), _MASKED_SCORE, np.float32), 1)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelSetError(f"{path}: not a tokenizer file: {error}: run `anima-batch models verify`") from error


def _shorten(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
