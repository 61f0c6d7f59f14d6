"""Prompt embeddings on disk: named by what they depend on, so that all jobs of a workspace share them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from anima_batch.environment import Environment
from anima_batch.files import canonical_json, sha256_bytes
from anima_batch.model_set import ModelSet

_TEXT_ROLES = ("qwen.", "t5.", "adapter.")
_RUNTIME = ("anima_batch", "numpy", "onnxruntime", "machine")


class EmbedsFolder:
    """Where the embeddings of prompts lie that a model set makes in an environment.

    The versions of what computes them are part of a file's name, since another version may give other bits.
    """

    def __init__(self, folder: Path, model_set: ModelSet, environment: Environment) -> None:
        self.folder = folder
        runtime = {key: environment[key] for key in _RUNTIME} | {"tokenizers": version("tokenizers")}
        # Canonical JSON, its keys in sorted order; rendered once, since a job may have 100,000 prompts.
        self._head = f'{{"components":{canonical_json(model_set.part_digest(*_TEXT_ROLES))},"prompt":'
        text = canonical_json(model_set.description.text.model_dump())
        self._tail = f',"runtime":{canonical_json(runtime)},"text":{text}}}'

    def path(self, prompt: str) -> Path:
        """Of a prompt's file, whether it is there or not."""
        return self.folder / self._name(prompt)

    def find_kept(self, prompts: Iterable[str]) -> set[str]:
        """Those of the prompts that have a file; it is not read."""
        names = {path.name for path in self.folder.glob("*.embeds")}
        return {prompt for prompt in set(prompts) if self._name(prompt) in names} if names else set()

    def _name(self, prompt: str) -> str:
        content = f"{self._head}{json.dumps(prompt, ensure_ascii=False)}{self._tail}"
        return f"{sha256_bytes(content.encode())}.embeds"
