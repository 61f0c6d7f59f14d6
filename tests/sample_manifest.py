"""A manifest with every field filled in."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from anima_batch.job import ImageRequest, SpectrumPolicy
from anima_batch.store.manifest import describe_latents, record_policy
from anima_batch.store.records import (
    ChecksRecord,
    ComponentRecord,
    EnvironmentRecord,
    ImageFile,
    JobRecord,
    Manifest,
    ModelSetRecord,
    RunRecord,
    SamplingRecord,
    SourceRecord,
    StepRecord,
    TimingsRecord,
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def done(**changes: Any) -> Manifest:
    """A manifest of a finished image, its fields replaced by `changes`."""
    request = ImageRequest(prompt="an owl, 夜の森 🦉", seed=2**64 - 1, width=128, height=192, policy=SpectrumPolicy())
    component = ComponentRecord(
        role="vae.decoder", path="vae.onnx", bytes=9, sha256=sha("c"), xxh3_128="0" * 32, built_with={"onnx": "1.16.0"}
    )
    step = StepRecord(
        index=1, sigma=1.0, computed=True, passes=2, seconds=0.1, nan=0, inf=0, abs_max=4.25, latents_xxh3="a" * 32
    )
    fields: dict[str, Any] = {
        "request_id": sha("request"),
        "status": "done",
        "request": request,
        "job": JobRecord(name="sweep", digest=sha("job")),
        "image": ImageFile(
            path="outputs/sweep/owl.png", sha256=sha("f"), pixel_sha256=sha("p"), bytes=5, width=128, height=192
        ),
        "model_set": ModelSetRecord(
            name="picture-book",
            digest=sha("set"),
            license="Apache-2.0",
            source=(SourceRecord(role="transformer", file="anima.safetensors", bytes=7, sha256=sha("s")),),
            components=(component,),
        ),
        "environment": EnvironmentRecord(
            anima_batch="0.1.0",
            python="3.11.7",
            numpy="2.0.0",
            onnxruntime="1.20.0",
            rknn_toolkit_lite2=None,
            librknnrt=None,
            rknpu_driver=None,
            soc=None,
            kernel="6.1.0",
            machine="x86_64",
            core_mask=None,
        ),
        "sampling": SamplingRecord(
            sigmas=(1.0, 0.1 + 0.2, 0.0),
            computed_steps=(1,),
            forecast_steps=(2,),
            policy=record_policy(request, "spectrum"),
            noise="torch",
            noise_sha256=sha("noise"),
        ),
        "steps": (step,),
        "timings": TimingsRecord(
            encode=0.1, denoise=1.5, decode=0.25, load=0.0, init=0.0, run=1.0, release=0.0, host=0.5, total=1.85
        ),
        "latents": describe_latents(np.linspace(-1, 1, 48, dtype=np.float32).reshape(16, 1, 3)),
        "runs": (RunRecord(boot_id="b", started_at="2026-08-12T22:00:00Z", first_step=1, last_step=2, resumed=False),),
        "checks": ChecksRecord(finite=True, not_flat=True),
        "warnings": (),
    }
    return Manifest(**{**fields, **changes})
