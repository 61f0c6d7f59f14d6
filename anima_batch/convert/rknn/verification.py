"""A model set's graphs as the NPU compiler makes them, beside ONNX Runtime and torch on a real trajectory."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anima_batch.anima.pipeline import Pipeline, open_pipeline
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.rknn.calibration import Course, Pictures, calibration_steps, capture_inputs, run_course
from anima_batch.convert.rknn.conversion import choose_sizes, count_tokens
from anima_batch.convert.rknn.diffusers_lane import DiffusersLane, import_diffusers
from anima_batch.convert.rknn.lanes import Call, Comparison, Finding, make_lane, run_on
from anima_batch.convert.rknn.simulator import SimulatorBackend
from anima_batch.convert.rknn.toolkit import Toolkit, open_toolkit
from anima_batch.convert.rknn.trajectory import Judgement, judge, make_picture, run_steps
from anima_batch.errors import UsageError
from anima_batch.files import file_digests
from anima_batch.job import RunSpec
from anima_batch.model_set import ModelSet
from anima_batch.sampling.flow_match import make_sigmas
from anima_batch.sampling.policies import guidance_streams

MlpKind = Literal["fp16", "w8a8"]


@dataclass(frozen=True)
class VerifyOptions:
    """What to compare; `blocks` None for all, and then whole pictures too.

    Findings and calibration are of the first picture.
    """

    model_set: ModelSet
    toolkit: str
    toolkits: Path | None
    pictures: Pictures
    blocks: int | None = None
    mlp: MlpKind = "fp16"
    diffusers: Path | None = None

    @property
    def sampled_steps(self) -> tuple[int, ...]:
        """The steps (from 0) whose latents the blocks are compared on: others than MLPs are calibrated by."""
        steps = self.pictures.steps
        return tuple(sorted({steps // 4, steps - 1}))

    @property
    def compared_blocks(self) -> int:
        """How many of the set's blocks."""
        return self.blocks or self.model_set.description.transformer.blocks


@dataclass(frozen=True)
class Verification:
    """What was found; sigmas are those of the sampled steps."""

    options: VerifyOptions
    sigmas: tuple[float, ...]
    findings: tuple[Finding, ...]
    judgements: tuple[Judgement, ...]
    seconds: float

    @property
    def good(self) -> bool:
        """Whether all numbers are finite and all pictures near enough."""
        odd = sum(finding.deviation.nan + finding.deviation.inf for finding in self.findings)
        return odd == 0 and all(judgement.good for judgement in self.judgements)


def verify_conversion(options: VerifyOptions, show: Callable[[str], None]) -> Verification:
    """Everything that the options ask for; raises UsageError, ModelSetError, BackendError or ToolkitError."""
    started = time.perf_counter()
    _check(options)
    toolkit = open_toolkit(options.toolkit, options.toolkits, show)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="anima-batch-verify-")))
        pipeline = stack.enter_context(contextlib.closing(open_pipeline(options.model_set, "onnx", RunSpec())))
        show(_tell_cost(options))
        whole = options.blocks is None
        request = options.pictures.requests[0]
        course = run_course(pipeline, request, request.steps if whole else max(_needed_steps(options)), show)
        backend = _open_simulator(options, toolkit, pipeline, course, scratch)
        findings = tuple(_compare_blocks(options, pipeline, course, backend, show))
        judgements = tuple(_judge_pictures(options, pipeline, course, backend, show)) if whole else ()
    sigmas = tuple(course.sigma(step) for step in options.sampled_steps)
    return Verification(options, sigmas, findings, judgements, time.perf_counter() - started)


def _check(options: VerifyOptions) -> None:
    description, blocks = options.model_set.description, options.blocks
    choose_sizes(description.sizes, options.pictures.size)
    _ = options.pictures.requests
    if blocks is not None and not 1 <= blocks <= description.transformer.blocks:
        raise UsageError(f"--blocks: must be 1 to {description.transformer.blocks}, got {blocks}")
    if options.diffusers is not None:
        import_diffusers()
        _check_weights(options.diffusers, options.model_set.source_sha256("transformer"))


def _check_weights(path: Path, recorded: str | None) -> None:
    try:
        found = file_digests(path)[0]
    except OSError as error:
        raise UsageError(f"--diffusers: {path}: {error.strerror}") from error
    if recorded is not None and found != recorded:
        raise UsageError(
            f"--diffusers: {path}: must be the file that the set was made from (sha256 {recorded}), got sha256 {found}"
        )


def _needed_steps(options: VerifyOptions) -> tuple[int, ...]:
    calibrating = calibration_steps(options.pictures.steps) if options.mlp == "w8a8" else ()
    return (*options.sampled_steps, *calibrating)


def _tell_cost(options: VerifyOptions) -> str:
    pictures = options.pictures
    inputs = len(options.sampled_steps) * len(guidance_streams(pictures.requests[0]))
    runs = 3 * inputs  # each graph alone, in its block, and after all blocks before it
    text = (
        f"{options.compared_blocks} blocks of 3 graphs: each compiled by rknn-toolkit2 {options.toolkit}, "
        f"then simulated {runs} times"
    )
    if options.blocks is None:
        text += f"; {len(pictures.prompts)} pictures of {pictures.steps} steps by ONNX Runtime and by the simulator"
    return text


def _open_simulator(
    options: VerifyOptions, toolkit: Toolkit, pipeline: Pipeline, course: Course, scratch: Path
) -> SimulatorBackend:
    calibration: Mapping[Path, Sequence[Path]] = {}
    if options.mlp == "w8a8":
        captured = capture_inputs(pipeline, course, options.compared_blocks, scratch / "calibration")
        calibration = {options.model_set.path(role): files for role, files in captured.items()}
    rows = options.model_set.description.text.context_rows
    sizes = {"tokens": count_tokens(options.pictures.size), "rows": rows}
    return SimulatorBackend(toolkit, sizes, scratch, calibration)


def _compare_blocks(
    options: VerifyOptions,
    pipeline: Pipeline,
    course: Course,
    backend: SimulatorBackend,
    show: Callable[[str], None],
) -> Iterator[Finding]:
    request, transformer, calls = course.request, course.transformer, dict[str, list[Call]]()
    sigmas = make_sigmas(request.schedule, request.steps, request.shift)[:-1]
    comparison = Comparison(
        onnx=make_lane("onnx", transformer, pipeline.model_set, OnnxBackend(share_arena=True), calls),
        calls=calls,
        simulated=make_lane("rknn", transformer, pipeline.model_set, backend),
        torch=DiffusersLane(options.diffusers, transformer.config, course.contexts, sigmas, transformer.grid)
        if options.diffusers
        else None,
        samples=course.samples(options.sampled_steps),
        streams=guidance_streams(request),
    )
    for finding in comparison.run(options.compared_blocks):
        if finding.part == "hidden":
            show(f"block {finding.block}: {finding.lane} after {finding.reference}: cosine {finding.deviation.cosine}")
        yield finding


def _judge_pictures(
    options: VerifyOptions,
    pipeline: Pipeline,
    course: Course,
    backend: SimulatorBackend,
    show: Callable[[str], None],
) -> Iterator[Judgement]:
    lane = make_lane("rknn", course.transformer, pipeline.model_set, backend)  # compiled once, for all pictures
    try:
        for request in options.pictures.requests:
            reference = course if request == course.request else run_course(pipeline, request, request.steps, show)
            transformer = run_on(reference.transformer, lane.staging)
            latents = run_steps(request, transformer, request.steps, lambda line: show(f"rknn: {line}"))
            made, expected = (make_picture(steps, pipeline.decode) for steps in (latents, reference.latents))
            yield judge(request.prompt, made, expected)
    finally:
        lane.release()
