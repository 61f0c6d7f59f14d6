"""The content of `model_set.json`, with the bounds inside which the rest of the program can trust it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from anima_batch.paths import RelativePath

SCHEMA_VERSION = 1
RULE_BROKEN = "rule_broken"  # the type of the faults below, whose message says already what was got

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Xxh3 = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Size = Annotated[int, Field(gt=0, le=8192, multiple_of=16)]  # pixels
Width = Annotated[int, Field(ge=1, le=65536)]  # of an array, far above any model of this kind
HeadDim = Annotated[int, Field(ge=8, le=65536, multiple_of=2)]
Theta = Annotated[float, Field(gt=0)]
Line = Annotated[str, Field(max_length=1000)]

_BRANCHES = ("self_attn", "cross_attn", "mlp")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TransformerConfig(_Frozen):
    """Dimensions of the diffusion transformer, read from its tensors."""

    blocks: int = Field(ge=1, le=99)  # a role has two digits for them
    hidden: int = Field(ge=8, le=65536)
    head_dim: HeadDim
    context_dim: Width
    latent_channels: int = Field(ge=16, le=16)  # the only number that sampling and the decoder know

    @field_validator("head_dim")
    @classmethod
    def _check_head_dim(cls, value: int, info: ValidationInfo) -> int:
        hidden = info.data.get("hidden")  # a wrong one is missing from the data and has its own error
        if hidden is not None and hidden % value:
            raise _fault(f"must divide hidden = {hidden}, got {value}")
        return value


class TextConfig(_Frozen):
    """Dimensions of Qwen3 and the adapter, and what tensors cannot say of the text path."""

    context_rows: Width
    empty_prompt: Literal["token", "masked"]
    empty_token_id: Count
    head_dim: HeadDim
    rope_theta: Theta
    adapter_head_dim: HeadDim
    adapter_rope_theta: Theta


class VaeConfig(_Frozen):
    """Latent statistics, one of each a channel, and the tile in latent pixels (null: the picture is decoded whole)."""

    latent_mean: tuple[float, ...]
    latent_std: tuple[Annotated[float, Field(gt=0)], ...]
    tile: int | None = Field(default=None, ge=4, le=65536)


class TensorShape(_Frozen):
    """An input or output of a graph; a dimension is a number, or the name of a symbolic one."""

    name: Line
    dtype: Line
    shape: tuple[int | str, ...]


class Source(_Frozen):
    """A file of weights that the set was made from."""

    role: Line
    file: Line
    bytes: Count
    sha256: Sha256


class Component(_Frozen):
    """A file of the set; `built_with` names the tools that wrote it, with their versions."""

    role: Line
    path: RelativePath
    bytes: Count
    sha256: Sha256
    xxh3_128: Xxh3
    built_with: Mapping[str, str]
    inputs: tuple[TensorShape, ...] = ()
    outputs: tuple[TensorShape, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """(role, suffix), which a set has once: a role may be there in several kinds."""
        return self.role, PurePosixPath(self.path).suffix


class ModelSetFile(_Frozen):
    """The content of `model_set.json`."""

    schema_version: Literal[1]
    name: Line
    license: str
    sizes: tuple[tuple[Size, Size], ...] = Field(min_length=1, max_length=1000)  # (width, height), the default first
    transformer: TransformerConfig
    text: TextConfig
    vae: VaeConfig
    sources: tuple[Source, ...]
    components: tuple[Component, ...]

    @field_validator("vae")
    @classmethod
    def _check_channels(cls, value: VaeConfig, info: ValidationInfo) -> VaeConfig:
        transformer = info.data.get("transformer")
        for name in ("latent_mean", "latent_std"):
            count = len(getattr(value, name))
            if transformer is not None and count != transformer.latent_channels:
                raise _fault(
                    f"{name} must have {transformer.latent_channels} values, one a latent channel, got {count}"
                )
        return value

    @field_validator("components")
    @classmethod
    def _check_components(cls, value: tuple[Component, ...], info: ValidationInfo) -> tuple[Component, ...]:
        for (role, suffix), count in Counter(part.key for part in value).items():
            if count > 1:
                raise _fault(f"{role} must be there once as {suffix}, got {count} of it")
        if transformer := info.data.get("transformer"):
            _check_subgraphs(value, transformer.blocks)
        return value


def _check_subgraphs(components: tuple[Component, ...], blocks: int) -> None:
    """In each kind in which the transformer's graphs are there at all, they must all be there, and no others."""
    wanted = {f"transformer.{block:02d}.{branch}" for block, branch in itertools.product(range(blocks), _BRANCHES)}
    found: dict[str, set[str]] = {}
    for role, suffix in (part.key for part in components):
        if re.match(r"transformer\.(?!host$)", role):
            found.setdefault(suffix, set()).add(role)
    for suffix, roles in found.items():
        if odd := sorted(wanted ^ roles):
            fault = "is missing" if odd[0] in wanted else "is one too many"
            raise _fault(f"must be {blocks} x {', '.join(_BRANCHES)} as {suffix}: {odd[0]} {fault}")


def _fault(message: str) -> PydanticCustomError:
    context: dict[str, Any] = {"message": message}  # not as the template itself, in which brackets would be read
    return PydanticCustomError(RULE_BROKEN, "{message}", context)
