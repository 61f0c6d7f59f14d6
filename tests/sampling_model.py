"""A small nonlinear VelocityModel in NumPy, a replayed one, and requests for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from anima_batch.job.request import FullPolicy, GuidanceReusePolicy, ImageRequest, SpectrumPolicy
from anima_batch.sampling import SamplerState, pack_state

GOLDEN = Path(__file__).parent / "golden"

POLICIES = {
    "full": FullPolicy(),
    "denoised": SpectrumPolicy(),
    "features": SpectrumPolicy(forecast="features", coordinate="sigma", tail_steps=2, penalize_constant=False),
    "guidance_reuse": GuidanceReusePolicy(uncond_every=3, warmup_steps=2),
}


def golden_json(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def golden_arrays(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / name) as arrays:
        return dict(arrays)


def make_request(**fields: Any) -> ImageRequest:
    values = {"prompt": "an owl", "seed": 7, "width": 32, "height": 16, "steps": 12, **fields}
    return ImageRequest(**values)


def state_bytes(state: SamplerState) -> tuple[dict[str, bytes], str]:
    """All of a state as bytes, for comparison bit by bit."""
    tensors, meta = pack_state(state)
    return {name: tensor.tobytes() for name, tensor in tensors.items()}, json.dumps(meta)


class TinyModel:
    """For make_request's default size; features = tanh of a random mix of channels, shifted by step and stream."""

    def __init__(self, *, width: int = 24, broken_step: int | None = None) -> None:
        generator = np.random.default_rng(11)
        self.mix = generator.standard_normal((16, width)).astype(np.float32) / np.float32(4)
        self.unmix = generator.standard_normal((width, 16)).astype(np.float32) / np.float32(4)
        self.passes: list[int] = []
        self.broken_step = broken_step

    def features(self, latents: np.ndarray, step: int, streams: tuple[str, ...]) -> list[np.ndarray]:
        self.passes.extend([step] * len(streams))
        pixels = latents.reshape(16, -1).T  # (L, 16)
        shifts = [np.float32(0.1 * step + (0.5 if stream == "cond" else -0.3)) for stream in streams]
        return [np.tanh(pixels @ self.mix + shift) for shift in shifts]  # (L, width) each

    def velocity(self, features: np.ndarray, step: int) -> np.ndarray:
        velocity = (features @ self.unmix).T.reshape(16, 2, 4).copy()
        if step == self.broken_step:
            velocity[0, 0, 0], velocity[1, 0, 0] = np.nan, np.inf
        return velocity


class ReplayedModel:
    """Gives back recorded velocities; a step without a record fails the test, as no forecast step may ask for one."""

    def __init__(self, denoised: dict[int, np.ndarray], sigmas: np.ndarray) -> None:
        self.denoised = denoised
        self.sigmas = sigmas

    def features(self, latents: np.ndarray, step: int, streams: tuple[str, ...]) -> list[np.ndarray]:
        return [((latents - self.denoised[step]) / self.sigmas[step]).reshape(16, -1).T for _ in streams]

    def velocity(self, features: np.ndarray, step: int) -> np.ndarray:
        return features.T.reshape(self.denoised[step].shape).copy()
