"""One image as it was asked for: the request with every parameter explicit, its policies and its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from anima_batch.files import canonical_json, sha256_bytes

MAX_SEED = 2**64 - 1
TEXT_CHARACTERS = 100_000  # far more than any text encoder reads, and small enough for every file that holds it

Schedule: TypeAlias = Literal["simple", "discrete", "sgm_uniform", "normal", "beta"]
Sampler: TypeAlias = Literal["euler", "ab2", "dpmpp_2m"]
NoiseKind: TypeAlias = Literal["torch", "philox", "numpy"]


def _refuse_unwritable(text: str) -> str:
    if len(text) > TEXT_CHARACTERS:
        raise ValueError(f"must be text of at most {TEXT_CHARACTERS} characters, got {len(text)}")
    if "\0" in text or not (text.isascii() or text.encode("utf-8", "replace").decode("utf-8") == text):
        raise ValueError("must be text that UTF-8 can hold, without NUL")
    return text


def _drop_sign_of_zero(value: float) -> float:
    return value + 0.0  # -0.0 becomes 0.0: equal values must have equal JSON


# The description is what an error says is allowed, after "must be".
Text = Annotated[str, Strict(), AfterValidator(_refuse_unwritable), Field(description="text")]
Seed = Annotated[int, Strict(), Field(ge=0, le=MAX_SEED, description=f"0-{MAX_SEED}")]
Pixels = Annotated[int, Strict(), Field(ge=16, le=8192, multiple_of=16, description="a multiple of 16, 16-8192")]
Steps = Annotated[int, Strict(), Field(ge=1, le=200, description="1-200")]
_Finite = Annotated[float, Strict(), Field(allow_inf_nan=False), AfterValidator(_drop_sign_of_zero)]
GuidanceScale = Annotated[_Finite, Field(ge=0, le=100, description="0-100")]
Shift = Annotated[_Finite, Field(gt=0, le=100, description="above 0, at most 100")]
_Fraction = Annotated[_Finite, Field(ge=0, le=1, description="0-1")]
_StepCount = Annotated[int, Strict(), Field(ge=0, le=200, description="0-200")]
_PositiveStepCount = Annotated[int, Strict(), Field(ge=1, le=200, description="1-200")]


class _PolicyTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FullPolicy(_PolicyTable):
    """Every step is computed."""

    kind: Literal["full"] = "full"


class SpectrumPolicy(_PolicyTable):
    """Steps are forecast from the computed ones by a Chebyshev fit blended with a Taylor half step.

    `window_size` and `flex_window` count steps; `start_sigma` allows forecasts only where sigma <= start_sigma.
    Exactly one of `stop_fraction` and `tail_steps` is not None. `history` counts computed steps that are kept.
    """

    kind: Literal["spectrum"] = "spectrum"
    forecast: Literal["denoised", "features"] = "denoised"
    coordinate: Literal["step", "sigma"] = "step"
    warmup_steps: _StepCount = 4
    window_size: _PositiveStepCount = 2
    flex_window: Annotated[_Finite, Field(ge=0, le=200, description="0-200")] = 0.5
    tail_steps: _StepCount | None = Field(default=None, description="0-200")
    stop_fraction: _Fraction | None = Field(default=None, validate_default=True, description="0-1")
    start_sigma: _Fraction = 1.0
    blend: _Fraction = 0.4
    degree: Annotated[int, Strict(), Field(ge=0, le=16, description="0-16")] = 3
    ridge_lambda: Annotated[_Finite, Field(ge=0, le=1e6, description="0-1000000")] = 1.0
    penalize_constant: Annotated[bool, Strict()] = True
    history: Annotated[int, Strict(), Field(ge=2, le=200, description="2-200")] = Field(
        default=None, validate_default=True
    )

    @field_validator("stop_fraction", mode="before")
    @classmethod
    def _resolve_stop_fraction(cls, value: object, info: ValidationInfo) -> object:
        tail_given = info.data.get("tail_steps") is not None
        if value is not None and tail_given:
            raise ValueError("must not be given beside tail_steps: keep one of the two")
        # A wrong tail_steps is missing from the data and has its own error.
        return 0.9 if value is None and not tail_given else value

    @field_validator("history", mode="before")
    @classmethod
    def _resolve_history(cls, value: object, info: ValidationInfo) -> object:
        return max(info.data.get("degree", 3) + 1, 6) if value is None else value


class GuidanceReusePolicy(_PolicyTable):
    """The conditional pass runs at every step, the unconditional one at every n-th; the difference is kept between."""

    kind: Literal["guidance_reuse"] = "guidance_reuse"
    uncond_every: _PositiveStepCount = 2
    warmup_steps: _StepCount = 4


Policy: TypeAlias = Annotated[FullPolicy | SpectrumPolicy | GuidanceReusePolicy, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ImageRequest:
    """Everything that decides an image, apart from the model set; width and height in pixels.

    Names (of the prompt, of the policy) are no part of it: they do not change the image.
    """

    prompt: Text
    negative_prompt: Text = ""
    seed: Seed
    width: Pixels
    height: Pixels
    steps: Steps = 20
    guidance_scale: GuidanceScale = 4.0
    shift: Shift = 3.0
    schedule: Schedule = "simple"
    sampler: Sampler = "euler"
    noise: NoiseKind = "torch"
    policy: Policy = FullPolicy()

    @property
    def prompts(self) -> tuple[str, ...]:
        """The texts that it is conditioned on; without guidance the negative prompt is none of them."""
        return (self.prompt,) if self.guidance_scale == 1.0 else (self.prompt, self.negative_prompt)


REQUEST_FIELDS = tuple(field.name for field in fields(ImageRequest))
_SLOTS = tuple((name, getattr(ImageRequest, name).__set__) for name in REQUEST_FIELDS)  # frozen has no other way


def build_request(values: Mapping[str, Any]) -> ImageRequest:
    """The request of values that were validated before; much faster than checking them again.

    `values` holds each of REQUEST_FIELDS. A matrix repeats few values in many images: each is checked once.
    """
    request = object.__new__(ImageRequest)
    for name, write in _SLOTS:
        write(request, values[name])
    return request


def request_json(request: ImageRequest) -> dict[str, Any]:
    """The request as plain JSON values, every parameter of the policy explicit; `ImageRequest(**value)` reads it."""
    value = {name: getattr(request, name) for name in REQUEST_FIELDS}
    value["policy"] = request.policy.model_dump()
    return value


def request_id(request: ImageRequest, model_set_digest: str) -> str:
    """SHA-256, in hex, of the canonical JSON of `{"model_set": digest, "request": request_json(request)}`."""
    value = {"model_set": model_set_digest, "request": request_json(request)}
    return sha256_bytes(canonical_json(value).encode("utf-8"))


def request_ids(requests: Iterable[ImageRequest], model_set_digest: str) -> list[str]:
    """`request_id` of each request, several times faster: what many have in common is rendered and hashed once.

    The keys below stand in sorted order, as canonical JSON has them; those up to `schedule` are the common part.
    """
    text, number = json.JSONEncoder(ensure_ascii=False).encode, float.__repr__
    common = attrgetter("guidance_scale", "height", "negative_prompt", "noise", "prompt", "sampler", "schedule")
    begun: dict[tuple[Any, ...], Any] = {}  # by the common part; a policy by its identity, kept alive beside the digest
    ids = []
    for r in requests:
        key = (common(r), id(r.policy))
        if (known := begun.get(key)) is None:
            head = (
                f'{{"model_set":{text(model_set_digest)},"request":{{"guidance_scale":{number(r.guidance_scale)}'
                f',"height":{r.height},"negative_prompt":{text(r.negative_prompt)},"noise":"{r.noise}"'
                f',"policy":{canonical_json(r.policy.model_dump())},"prompt":{text(r.prompt)}'
                f',"sampler":"{r.sampler}","schedule":"{r.schedule}"'
            )
            known = begun[key] = (hashlib.sha256(head.encode("utf-8")), r.policy)
        digest = known[0].copy()
        digest.update(
            f',"seed":{r.seed},"shift":{number(r.shift)},"steps":{r.steps},"width":{r.width}}}}}'.encode("ascii")
        )
        ids.append(digest.hexdigest())
    return ids
