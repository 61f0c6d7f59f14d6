"""The table of subgraphs and the few numbers that every Anima shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Branch = Literal["self_attn", "cross_attn", "mlp"]

BRANCHES: tuple[Branch, ...] = ("self_attn", "cross_attn", "mlp")  # in the order in which a block runs them
PATCH = 2  # a token is PATCH x PATCH latent pixels
VAE_FACTOR = 8  # a latent pixel is VAE_FACTOR x VAE_FACTOR image pixels
LATENT_CHANNELS = 16


@dataclass(frozen=True)
class SubgraphKey:
    """One of the 28 x 3 graphs of the transformer."""

    component: Literal["transformer"]
    block: int
    branch: Branch

    @property
    def role(self) -> str:
        """Its name in `model_set.json`."""
        return f"{self.component}.{self.block:02d}.{self.branch}"


def subgraph_keys(blocks: int) -> tuple[SubgraphKey, ...]:
    """All subgraphs in the order in which a pass runs them."""
    return tuple(SubgraphKey("transformer", block, branch) for block in range(blocks) for branch in BRANCHES)
