"""Inputs of the MLPs as they are in real pictures, to choose the ranges of their int8 values by."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.config import SubgraphKey
from anima_batch.anima.ops import Array
from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.anima.transformer import Transformer
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.rknn.lanes import Call, Sample, make_lane
from anima_batch.convert.rknn.trajectory import run_steps
from anima_batch.errors import UsageError
from anima_batch.files import file_digests, make_folder, sha256_bytes, storage_errors
from anima_batch.job import ImageRequest, RunSpec
from anima_batch.model_set import ModelSet
from anima_batch.sampling import make_sigmas
from anima_batch.sampling.policies import guidance_streams

PROMPTS = ("a red house on the left on grass by day", "three blue owls by night in snowfall")


@dataclass(frozen=True)
class Pictures:
    """What real pictures are made of: one a prompt, (width, height) in pixels, by 20 steps as published."""

    size: tuple[int, int]
    prompts: Sequence[str] = PROMPTS
    seed: int = 20260812
    steps: int = 20

    @property
    def requests(self) -> tuple[ImageRequest, ...]:
        """One a prompt; raises UsageError for values that no image can have."""
        width, height = self.size
        try:
            return tuple(
                ImageRequest(prompt=prompt, seed=self.seed, width=width, height=height, steps=self.steps)
                for prompt in self.prompts
            )
        except ValidationError as error:
            fault = error.errors()[0]
            raise UsageError(f"--{fault['loc'][0]}: {fault['msg']}, got {fault['input']!r:.60}") from error


@dataclass(frozen=True)
class Course:
    """A request as ONNX Runtime walks it: the transformer, its contexts, and the latents before each step."""

    request: ImageRequest
    transformer: Transformer
    contexts: Mapping[str, Array]
    latents: tuple[Array, ...]

    def samples(self, steps: Sequence[int]) -> list[Sample]:
        """The latents at some steps, which count from 0."""
        return [Sample(step, self.latents[step]) for step in steps]

    def sigma(self, step: int) -> float:
        """The noise at the beginning of a step, 1 at first."""
        return float(make_sigmas(self.request.schedule, self.request.steps, self.request.shift)[step])


def run_course(pipeline: Pipeline, request: ImageRequest, steps: int, show: Callable[[str], None]) -> Course:
    """The first steps of a request by ONNX Runtime; raises BackendError."""
    conditioning = Conditioning(*pipeline.encode([request.prompt, request.negative_prompt]))
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)
    transformer = pipeline.make_transformer(sigmas, conditioning, request.width, request.height)
    latents = run_steps(request, transformer, steps, lambda line: show(f"onnx: {line}"))
    pipeline.close()  # its graphs would stay open beside the lanes' own; those of a next picture are opened again
    return Course(request, transformer, conditioning.streams, latents)


def calibration_steps(steps: int) -> tuple[int, ...]:
    """Which steps (from 0) are captured: one of high noise and one of low, both CFG streams of each."""
    return tuple(sorted({min(1, steps - 1), max(steps - 2, 0)}))


def calibrate(
    model_set: ModelSet, pictures: Pictures, folder: Path, show: Callable[[str], None]
) -> dict[str, tuple[Path, ...]]:
    """Files (.npy) with the inputs that each MLP had while ONNX Runtime made these pictures, by role.

    Raises ModelSetError, BackendError and StorageError.
    """
    captured: dict[str, tuple[Path, ...]] = {}
    with contextlib.closing(open_pipeline(model_set, "onnx", RunSpec())) as pipeline:
        for number, request in enumerate(pictures.requests):
            course = run_course(pipeline, request, max(calibration_steps(request.steps)), show)
            blocks = model_set.description.transformer.blocks
            found = capture_inputs(pipeline, course, blocks, folder / f"{number}")
            captured = {role: (*captured.get(role, ()), *files) for role, files in found.items()}
    return captured


def digest_files(files: Sequence[Path]) -> str:
    """SHA-256 over their contents, one after the other."""
    return sha256_bytes("".join(file_digests(path)[0] for path in files).encode())


def capture_inputs(pipeline: Pipeline, course: Course, blocks: int, folder: Path) -> dict[str, tuple[Path, ...]]:
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
        captured[role] = tuple(_write_inputs(folder, role, calls[role]))
        lane.release()
        calls.clear()
    return captured


def _write_inputs(folder: Path, role: str, calls: Sequence[Call]) -> Iterator[Path]:
    for number, (feeds, _) in enumerate(calls):
        path = folder / f"{role}.{number}.npy"
        with storage_errors(path):
            np.save(path, feeds["z"])
        yield path
