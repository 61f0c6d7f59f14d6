"""Diffusers' own Anima pipeline on official files, for whole trajectories to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from diffusers import AnimaAutoBlocks, ClassifierFreeGuidance, FlowMatchEulerDiscreteScheduler
from diffusers.modular_pipelines import PipelineState
from diffusers.modular_pipelines.anima.before_denoise import AnimaTextConditioningStep
from diffusers.modular_pipelines.anima.decoders import AnimaProcessImagesOutputStep, AnimaVaeDecoderStep
from diffusers.modular_pipelines.anima.encoders import AnimaTextEncoderStep
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from anima_batch.convert.tokenizer import read_qwen_tokenizer, read_t5_tokenizer
from anima_batch.job import ImageRequest
from anima_batch.sampling import Array, initial_state, make_sigmas
from studies.diffusers_models import load_text_conditioner, load_text_encoder, load_transformer, load_vae


@dataclass(frozen=True)
class OfficialFiles:
    """What `anima-batch convert` takes, and what tensors do not tell."""

    transformer: Path
    text_encoder: Path
    vae: Path
    qwen_tokenizer: Path
    t5_tokenizer: Path
    context_rows: int
    latent_mean: tuple[float, ...]
    latent_std: tuple[float, ...]


@dataclass(frozen=True)
class Trace:
    """What a run went through: latents (16, h, w) at first and after each step, and the picture, uint8 (H, W, 3)."""

    latents: tuple[Array, ...]
    picture: npt.NDArray[np.uint8]


class DiffusersAnima:
    """Diffusers' Anima pipeline in float32; its empty prompt is a masked one."""

    def __init__(self, files: OfficialFiles) -> None:
        self._rows = files.context_rows
        self.pipeline = AnimaAutoBlocks().init_pipeline()
        self.pipeline.update_components(
            tokenizer=_wrap(read_qwen_tokenizer(files.qwen_tokenizer)),
            t5_tokenizer=_wrap(read_t5_tokenizer(files.t5_tokenizer)),
            text_encoder=load_text_encoder(files.text_encoder),
            text_conditioner=load_text_conditioner(files.transformer, files.context_rows),
            transformer=load_transformer(files.transformer),
            vae=load_vae(files.vae, files.latent_mean, files.latent_std),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),  # sigmas are given, already shifted
        )

    def encode(self, prompt: str) -> Array:
        """The context of a prompt, (context_rows, C)."""
        steps = (AnimaTextEncoderStep(), AnimaTextConditioningStep())
        state = self._run(steps, prompt=prompt, max_sequence_length=self._rows)
        return _array(state.get("prompt_embeds")[0])

    def velocity(self, latents: Array, sigma: float, context: Array) -> Array:
        """The velocity noise - x0 at latents (16, h, w)."""
        x, rows = torch.from_numpy(latents)[None, :, None], torch.from_numpy(context)[None]
        with torch.no_grad():
            output = self.pipeline.transformer(x, torch.tensor([sigma]), rows, return_dict=False)
        return _array(output[0][0, :, 0])

    def decode(self, latents: Array) -> npt.NDArray[np.uint8]:
        """The picture of latents as the sampler leaves them, uint8 (H, W, 3)."""
        steps = (AnimaVaeDecoderStep(), AnimaProcessImagesOutputStep())
        state = self._run(steps, latents=torch.from_numpy(latents)[None, :, None], output_type="pil")
        return np.asarray(state.get("images")[0])

    def trace(self, request: ImageRequest) -> Trace:
        """The whole pipeline from the request's noise along its sigmas; raises ValueError for another than Euler's."""
        if request.sampler != "euler" or request.policy.kind != "full":
            raise ValueError(f"only euler with every step computed, got {request.sampler}, {request.policy.kind}")
        seen: list[Tensor] = []

        def note(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if not seen or named["hidden_states"] is not seen[-1]:  # both passes of a step take the same
                seen.append(named["hidden_states"])

        self.pipeline.update_components(guider=ClassifierFreeGuidance(guidance_scale=request.guidance_scale))
        hook = self.pipeline.transformer.register_forward_pre_hook(note, with_kwargs=True)
        try:
            state = self.pipeline(
                prompt=request.prompt,
                negative_prompt=request.negative_prompt,
                max_sequence_length=self._rows,
                height=request.height,
                width=request.width,
                latents=torch.from_numpy(initial_state(request).latents.copy())[None, :, None],
                num_inference_steps=request.steps,
                sigmas=make_sigmas(request.schedule, request.steps, request.shift)[:-1].tolist(),
            )
        finally:
            hook.remove()
        latents = [_array(tensor[0, :, 0]) for tensor in (*seen, state.get("latents"))]
        return Trace(tuple(latents), np.asarray(state.get("images")[0]))

    def _run(self, steps: Sequence[Any], **inputs: object) -> PipelineState:
        state = PipelineState()
        for name, value in inputs.items():
            state.set(name, value)
        for step in steps:
            _, state = step(self.pipeline, state)
        return state


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """As Transformers has it; a pad token is asked for but never used, since prompts are encoded one at a time."""
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    wrapped.pad_token = tokenizer.id_to_token(0)
    return wrapped


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.numpy()
    return array
