"""What the prompts of an image became; apart from the pipeline, so that no runtime is imported for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from anima_batch.anima.ops import Array


@dataclass(frozen=True)
class Conditioning:
    """What the prompts became, each (context_rows, C) float32; the negative one is None where no pass uses it."""

    prompt_embeds: Array
    negative_prompt_embeds: Array | None

    @property
    def streams(self) -> Mapping[str, Array]:
        """By the name of the CFG stream."""
        cond = {"cond": self.prompt_embeds}
        return cond if self.negative_prompt_embeds is None else {**cond, "uncond": self.negative_prompt_embeds}

    @property
    def sha256(self) -> str:
        """Digest of the streams' bytes in the order cond, uncond."""
        digest = hashlib.sha256()
        for array in self.streams.values():
            digest.update(array.tobytes())
        return digest.hexdigest()
