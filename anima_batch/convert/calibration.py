"""Inputs of the MLPs as they are in real pictures, to choose the ranges of their int8 values by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.config import SubgraphKey
from anima_batch.anima.ops import Array
from anima_batch.anima.pipeline import Pipeline
from anima_batch.anima.transformer import Transformer
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.backends.rknn_file import read_buffer_sizes, read_rknn
from anima_batch.convert.lanes import Call, Sample, make_lane
from anima_batch.errors import ToolkitError
from anima_batch.files import make_folder, storage_errors
from anima_batch.job import ImageRequest
from anima_batch.sampling import make_sigmas
from anima_batch.sampling.policies import guidance_streams


@dataclass(frozen=True)
class Course:
    """A request as ONNX Runtime walks it: the transformer made for it, and the latents before each step."""

    request: ImageRequest
    transformer: Transformer
    latents: tuple[Array, ...]

    def samples(self, steps: Sequence[int]) -> list[Sample]:
        """The latents at some steps, which count from 0."""
        return [Sample(step, self.latents[step]) for step in steps]

    def sigma(self, step: int) -> float:
        """The noise at the beginning of a step, 1 at first."""
        return float(make_sigmas(self.request.schedule, self.request.steps, self.request.shift)[step])


def start_transformer(pipeline: Pipeline, request: ImageRequest) -> Transformer:
    """The transformer of a request, its prompts encoded."""
    embeds = pipeline.encode([request.prompt, request.negative_prompt])
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    return pipeline.make_transformer(sigmas, Conditioning(*embeds), request.width, request.height)


def calibration_steps(steps: int) -> tuple[int, ...]:
    """Which steps (from 0) are captured: one of high noise and one of low, both CFG streams of each."""
    return tuple(sorted({min(1, steps - 1), max(steps - 2, 0)}))


def capture_inputs(pipeline: Pipeline, course: Course, blocks: int, folder: Path) -> dict[str, list[Path]]:
    """Files (.npy) with the inputs that the MLP of each of the first blocks had, by role; raises BackendError."""
    calls: dict[str, list[Call]] = {}
    lane = make_lane("onnx", course.transformer, pipeline.model_set, OnnxBackend(share_arena=True), calls)
    streams = guidance_streams(course.request)
    samples = course.samples(calibration_steps(course.request.steps))
    residuals = [[course.transformer.embed(sample.latents) for _ in streams] for sample in samples]
    make_folder(folder)
    captured = {}
    for block in range(blocks):
        for sample, hidden in zip(samples, residuals, strict=True):
            lane.add_block(block, hidden, sample.step, streams)
        role = SubgraphKey("transformer", block, "mlp").role
        captured[role] = list(_write_inputs(folder, role, calls[role]))
        lane.release()
        calls.clear()
    return captured


def _write_inputs(folder: Path, role: str, calls: Sequence[Call]) -> Iterator[Path]:
    for number, (feeds, _) in enumerate(calls):
        path = folder / f"{role}.{number}.npy"
        with storage_errors(path):
            np.save(path, feeds["z"])
        yield path


def check_quantised(path: Path, weights: Mapping[str, int]) -> None:
    """Raise ToolkitError unless the file has all weights as int8, and an output that is not.

    `weights` is the number of values by name: an int8 matrix is a buffer of just so many bytes.
    """
    described, sizes = read_rknn(path), list(read_buffer_sizes(path))
    for name, count in weights.items():
        if count not in sizes:
            raise ToolkitError(f"{path}: {name}: must be {count} bytes of int8, got buffers of {sizes}: not quantised")
        sizes.remove(count)
    kinds = [spec.dtype for spec in (*described.inputs, *described.outputs)]
    if kinds != ["int8", "float16"]:
        raise ToolkitError(f"{path}: input and output must be int8 and float16, got {kinds}: not quantised as asked")
