"""The fields of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from anima_batch.job import ImageRequest, request_json
from anima_batch.paths import RelativePath

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Xxh3 = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
MAX_PIXELS = 8192  # of a side, as in a request

# The bounds are far beyond what can be, and near enough that sums and ratios of any records stay finite.
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Field(ge=-1e9, le=1e9)]  # the host's share was once a difference, and may be just below 0
Side = Annotated[int, Field(ge=1, le=MAX_PIXELS)]

UNSIGNED = "0" * 64


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class JobRecord(_Record):
    """The job that asked for the image, by the digest of its file."""

    name: str
    digest: Sha256


class ImageFile(_Record):
    """The PNG: `path` relative to the workspace, digests of the file and of its pixels (`png.pixel_sha256`)."""

    path: RelativePath
    sha256: Sha256
    pixel_sha256: Sha256
    bytes: Count
    width: Side
    height: Side


class ErrorRecord(_Record):
    """Why an image failed; `step` counts from 1 and is null outside sampling."""

    kind: str
    step: Count | None
    message: str


class SourceRecord(_Record):
    """A file of weights that the model set was made from."""

    role: str
    file: str
    bytes: Count
    sha256: Sha256


class ComponentRecord(_Record):
    """A file of the model set."""

    role: str
    path: RelativePath
    bytes: Count
    sha256: Sha256
    xxh3_128: Xxh3
    built_with: Mapping[str, str]


class ModelSetRecord(_Record):
    """The model set, whole."""

    name: str
    digest: Sha256
    license: str
    source: tuple[SourceRecord, ...]
    components: tuple[ComponentRecord, ...]


class EnvironmentRecord(_Record):
    """Versions and hardware; null where absent."""

    anima_batch: str
    python: str
    numpy: str
    onnxruntime: str | None
    rknn_toolkit_lite2: str | None
    librknnrt: str | None
    rknpu_driver: str | None
    soc: str | None
    kernel: str | None
    machine: str | None
    core_mask: str | None
    npu_canary: str | None = None  # an NPU's answer to fixed inputs, as XXH3-128; manifests before it have none


class SamplingRecord(_Record):
    """How the image was sampled; steps count from 1, `policy` is its name and then every parameter."""

    sigmas: tuple[float, ...]
    computed_steps: tuple[Count, ...]
    forecast_steps: tuple[Count, ...]
    policy: Mapping[str, str | int | float | bool | None]
    noise: str
    noise_sha256: Sha256 | None

    @field_validator("policy")
    @classmethod
    def _check_policy(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if missing := [key for key in ("name", "kind") if not isinstance(value.get(key), str)]:
            raise ValueError(f"{missing[0]}: must be a string, got {value.get(missing[0])!r}")
        return value


class StepRecord(_Record):
    """One step; `abs_max` is over the finite values and null when there is none."""

    index: Annotated[Count, Field(ge=1)]
    sigma: float
    computed: bool
    passes: Count
    seconds: Seconds
    nan: Count
    inf: Count
    abs_max: float | None
    latents_xxh3: Xxh3


class TimingsRecord(_Record):
    """Seconds."""

    encode: Seconds
    denoise: Seconds
    decode: Seconds
    load: Seconds
    init: Seconds
    run: Seconds
    release: Seconds
    host: Seconds
    total: Seconds


class LatentsRecord(_Record):
    """The last latents: digest of their bytes in C order, statistics over the finite values (null without any)."""

    sha256: Sha256
    dtype: str
    shape: tuple[Count, ...]
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    nan: Count
    inf: Count


class RunRecord(_Record):
    """A process that worked on the image; without a finished step `last_step` is `first_step - 1`.

    `board` is the machine's name in a fleet, null where a single machine made the image.
    """

    boot_id: str | None
    started_at: str
    first_step: Count
    last_step: Count
    resumed: bool
    board: str | None = None


class ChecksRecord(_Record):
    """Checks of the result; `not_flat` is null when no picture was decoded."""

    finite: bool
    not_flat: bool | None


class Manifest(_Record):
    """The file's content, in its order; `self_sha256` is filled in by `to_bytes` and is zeros before.

    A failed image has `error` and a null `image`, a done one the reverse. JSON has no NaN: see the records above.
    """

    schema_version: Literal[1] = 1
    request_id: Sha256
    status: Literal["done", "failed"]
    error: ErrorRecord | None = None
    request: ImageRequest
    job: JobRecord
    image: ImageFile | None
    model_set: ModelSetRecord
    environment: EnvironmentRecord
    sampling: SamplingRecord
    steps: tuple[StepRecord, ...]
    timings: TimingsRecord
    latents: LatentsRecord | None
    runs: tuple[RunRecord, ...]
    checks: ChecksRecord
    warnings: tuple[str, ...]
    self_sha256: Sha256 = UNSIGNED

    @field_serializer("request")
    def _dump_request(self, request: ImageRequest) -> dict[str, Any]:
        return request_json(request)

    @model_validator(mode="after")
    def _check_status(self) -> Manifest:
        done = self.status == "done"
        if done != (self.image is not None) or done != (self.error is None):
            raise ValueError("status: done goes with image and without error, failed with error and without image")
        if done and (self.latents is None or self.sampling.noise_sha256 is None):
            raise ValueError("latents, sampling.noise_sha256: must not be null when status is done")
        return self
