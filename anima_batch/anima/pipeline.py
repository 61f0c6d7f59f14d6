"""The stages of one image: encode the prompts, denoise step by step, decode the pixels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from anima_batch.anima.canary import run_canary
from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.config import PATCH, VAE_FACTOR, subgraph_keys
from anima_batch.anima.engine import Engine, choose_core
from anima_batch.anima.ops import Array
from anima_batch.anima.sessions import open_session
from anima_batch.anima.text import PromptTokenizer, encode_prompts, load_tokenizer, prompt_warnings
from anima_batch.anima.transformer import HostWeights, Modulation, Transformer, compute_modulation, make_transformer
from anima_batch.anima.vae import decode
from anima_batch.backends.base import Backend
from anima_batch.backends.memory_gate import MemoryGate
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.rknn import RknnBackend
from anima_batch.backends.staging import Staging
from anima_batch.environment import available_bytes
from anima_batch.job import RunSpec
from anima_batch.model_set import ModelSet

RESIDENT_SHARE = 0.25  # of the available memory that graphs may take on disk before "auto" opens them anew in each pass
SMALL_BYTES = 64 << 20  # of all graphs: closing so little helps no machine that is short of memory
NPU_ADDRESS_BYTES = 4 << 30  # the NPU's one IOMMU domain: however much memory there is, contexts must fit in here


class Pipeline:
    """A model set ready to run. Text encoder and decoder are opened for their stage and closed after it."""

    def __init__(self, model_set: ModelSet, backend: Backend, cpu: Backend, engine: Engine) -> None:
        self.model_set = model_set
        self.backend = backend
        self._cpu = cpu
        self._engine = engine
        self._weights = HostWeights(model_set.path("transformer.host", ".safetensors"))
        self._modulation: tuple[bytes, Modulation] | None = None
        self._tokenizer: PromptTokenizer | None = None

    def encode(self, prompts: Sequence[str]) -> list[Array]:
        """The context of each prompt, (context_rows, C)."""
        return encode_prompts(prompts, self.model_set, self._cpu)

    def warn_about(self, prompt: str) -> list[str]:
        """What the prompt says that will not act as its writer may think."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.model_set)
        return prompt_warnings(prompt, self._tokenizer)

    def make_transformer(self, sigmas: Array, conditioning: Conditioning, width: int, height: int) -> Transformer:
        """The velocity model of one image: sigmas (N+1,) with the final 0, picture size in pixels."""
        key = sigmas.tobytes()
        config = self.model_set.description.transformer
        if self._modulation is None or self._modulation[0] != key:
            self._modulation = (key, compute_modulation(self._weights, config, sigmas[:-1]))
        grid = (height // (VAE_FACTOR * PATCH), width // (VAE_FACTOR * PATCH))
        return make_transformer(self._weights, config, self._engine, self._modulation[1], conditioning.streams, grid)

    def decode(self, latents: Array) -> npt.NDArray[np.uint8]:
        """Pixels uint8 (H, W, 3) of latents (16, h, w); raises BackendError when they are not finite."""
        with contextlib.closing(open_session(self._cpu, self.model_set, "vae.decoder")) as session:
            return decode(session, latents, self.model_set.description.vae)

    def run_canary(self) -> str | None:
        """The digest of an NPU's answers to fixed inputs; None on the CPU. Its versions are known after it."""
        if self.backend.name == OnnxBackend.name:
            return None
        return run_canary(self._engine.staging, [key.role for key in subgraph_keys(1)])

    @property
    def fallback(self) -> str | None:
        """Why sessions are opened on demand in spite of what was asked for; None while they are not."""
        return self._engine.staging.fallback

    def close(self) -> None:
        """Release what staging kept open."""
        self._engine.staging.close()


def open_pipeline(
    model_set: ModelSet, backend_name: str, run: RunSpec, wrap: Callable[[Backend], Backend] | None = None
) -> Pipeline:
    """The pipeline of a model set; `backend_name` is "auto", "onnx" or "rknn", `wrap` puts a backend round each other.

    Raises BackendError or ModelSetError.
    """
    cpu: Backend = OnnxBackend(run.threads)
    backend = _choose_backend(model_set, backend_name, run)
    if wrap is not None:
        cpu, backend = wrap(cpu), wrap(backend)
    keys = {key.role: key for key in subgraph_keys(model_set.description.transformer.blocks)}
    files = {role: model_set.path(role, backend.suffix) for role in keys}
    # All of them now, rather than the last one in the middle of a picture.
    inputs = {(role, spec.name): spec.dtype for role, path in files.items() for spec in backend.check(path)}
    room = _room_bytes(backend.name, available_bytes())
    choice = choose_staging(
        run, list(files), sum(path.stat().st_size for path in files.values() if path.is_file()), room
    )
    staging = Staging(
        lambda role: open_session(backend, model_set, role, choose_core(keys[role].branch, backend.cores)),
        choice.keep,
        ahead_bytes=choice.ahead_bytes,
        files=files,
        gate=MemoryGate(run.min_available_mib << 20, run.max_swap_growth_mib << 20) if choice.gated else None,
    )
    halves = {key: np.dtype(np.float16) for key, dtype in inputs.items() if dtype == "float16"}
    interleave = run.interleave and _leaves_processors(backend.name, run.threads)
    engine = Engine(staging, backend.watch, backend.cores, interleave, halves)
    return Pipeline(model_set, backend, cpu, engine)


def _choose_backend(model_set: ModelSet, name: str, run: RunSpec) -> Backend:
    on_board = find_spec("rknnlite") is not None and model_set.has(RknnBackend.suffix)
    if name == "rknn" or (name == "auto" and on_board):
        return RknnBackend(run.core_mask)
    return OnnxBackend(run.threads, share_arena=True)


def _leaves_processors(backend_name: str, threads: int) -> bool:
    """Whether the host can work beside the accelerator: ONNX Runtime's threads may be on all of its processors."""
    return backend_name != OnnxBackend.name or 0 < threads < len(os.sched_getaffinity(0))


def _room_bytes(backend_name: str, available: int) -> int:
    return min(available, NPU_ADDRESS_BYTES) if backend_name == RknnBackend.name else available


@dataclass(frozen=True)
class StagingChoice:
    """The roles that stay open, the bytes of files that may be opened ahead, and whether a lack of memory ends that."""

    keep: Sequence[str] = ()
    ahead_bytes: int = 0
    gated: bool = True


def choose_staging(run: RunSpec, roles: Sequence[str], graph_bytes: int, room_bytes: int) -> StagingChoice:
    """What the run asks for; "auto" keeps all graphs open where they find room, and opens them ahead elsewhere."""
    kind = run.staging
    if kind == "auto" and graph_bytes <= SMALL_BYTES:
        return StagingChoice(roles, gated=False)
    if kind == "auto":
        kind = "resident" if graph_bytes <= RESIDENT_SHARE * room_bytes else "ahead"
    return {
        "on-demand": StagingChoice(),
        "ahead": StagingChoice(ahead_bytes=run.ahead_mib << 20),
        "pinned": StagingChoice(roles[: run.pinned]),
        "resident": StagingChoice(roles),
    }[kind]
