"""Several ways of computing the transformer's blocks, side by side on the same latents."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from anima_batch.anima.config import BRANCHES, SubgraphKey, subgraph_keys
from anima_batch.anima.ops import Array
from anima_batch.anima.sessions import open_session
from anima_batch.anima.transformer import Transformer
from anima_batch.backends.base import Backend, Session, TensorSpec
from anima_batch.backends.staging import Staging
from anima_batch.convert.rknn.deviation import Deviation, measure_deviation
from anima_batch.model_set import ModelSet

Call = tuple[Mapping[str, Array], Array]  # inputs by name, output


class Lane(Protocol):
    """A way to compute blocks."""

    @property
    def name(self) -> str:
        """What computes them."""
        ...

    def add_block(self, block: int, residuals: Sequence[Array], step: int, streams: Sequence[str]) -> None:
        """Add the block's three branches to the residual stream (L, D) of each CFG stream, in place."""
        ...

    def release(self) -> None:
        """Give back what the block at hand takes of memory."""
        ...


@dataclass(frozen=True)
class SessionLane:
    """The transformer over the sessions of a backend, which stay open until released."""

    name: str
    transformer: Transformer
    staging: Staging

    def add_block(self, block: int, residuals: Sequence[Array], step: int, streams: Sequence[str]) -> None:
        """As Lane says."""
        self.transformer.add_blocks([block], residuals, step, streams)

    def run(self, role: str, feeds: Mapping[str, Array]) -> Array:
        """One subgraph alone."""
        with self.staging.session(role) as session:
            return session.run(feeds)

    def release(self) -> None:
        """As Lane says."""
        self.staging.close()


def make_lane(
    name: str,
    transformer: Transformer,
    model_set: ModelSet,
    backend: Backend,
    calls: dict[str, list[Call]] | None = None,
) -> SessionLane:
    """A lane of the model set's ONNX graphs; where `calls` is given, each run is kept there by role."""

    def open_role(role: str) -> Session:
        session = open_session(backend, model_set, role)
        return session if calls is None else _Recorder(session, calls.setdefault(role, []))

    staging = Staging(open_role, keep=[key.role for key in subgraph_keys(transformer.config.blocks)])
    return SessionLane(name, run_on(transformer, staging), staging)


def run_on(transformer: Transformer, staging: Staging) -> Transformer:
    """The same transformer over other sessions."""
    return replace(transformer, engine=replace(transformer.engine, staging=staging))


class _Recorder:
    """A session that keeps what it was given and what it answered."""

    def __init__(self, session: Session, calls: list[Call]) -> None:
        self.inputs: tuple[TensorSpec, ...] = session.inputs
        self._session = session
        self._calls = calls

    def run(self, feeds: Mapping[str, Array]) -> Array:
        """As the session."""
        output = self._session.run(feeds)
        self._calls.append(
            ({name: array.copy() for name, array in feeds.items()}, output.copy())
        )  # they are used again
        return output

    def close(self) -> None:
        """As the session."""
        self._session.close()


@dataclass(frozen=True)
class Sample:
    """Latents (16, h, w) at a step of a real trajectory."""

    step: int
    latents: Array


@dataclass(frozen=True)
class Finding:
    """How far one lane is from another, over all samples and streams.

    `part` is a branch or "block" where both had the reference's inputs, "hidden" and "prediction" where errors add up.
    """

    block: int
    part: str
    lane: str
    reference: str
    deviation: Deviation


Residuals = list[list[Array]]  # by sample and CFG stream, (L, D) each


@dataclass(frozen=True)
class Comparison:
    """What is compared: the ONNX lane, whose runs are in `calls`, a simulated one, and torch's where it is given."""

    onnx: SessionLane
    calls: dict[str, list[Call]]
    simulated: SessionLane
    torch: Lane | None
    samples: Sequence[Sample]
    streams: Sequence[str]

    @property
    def pairs(self) -> Sequence[tuple[str, str]]:
        """(lane, reference) in the order in which a model is handed on: torch, ONNX, NPU."""
        names = [*([self.torch.name] if self.torch else []), self.onnx.name, self.simulated.name]
        return [(lane, reference) for index, reference in enumerate(names) for lane in names[index + 1 :]]

    def run(self, blocks: int) -> Iterator[Finding]:
        """Findings of the first blocks, each when its block is done; raises BackendError, ToolkitError."""
        lanes: list[Lane] = [self.onnx, self.simulated, *([self.torch] if self.torch else [])]
        start = [[self.onnx.transformer.embed(sample.latents) for _ in self.streams] for sample in self.samples]
        hidden = {lane.name: _copy(start) for lane in lanes}
        for block in range(blocks):
            yield from self._run_block(block, lanes, hidden)
        yield from self._compare_predictions(blocks - 1, hidden)

    def _run_block(self, block: int, lanes: Sequence[Lane], hidden: dict[str, Residuals]) -> Iterator[Finding]:
        before = _copy(hidden[self.onnx.name])
        self.calls.clear()
        self._add_block(self.onnx, block, hidden[self.onnx.name])
        alone = {self.onnx.name: hidden[self.onnx.name]}  # its own errors are what the others are measured from
        for lane in lanes:
            if lane is not self.onnx:
                alone[lane.name] = _copy(before)
                self._add_block(lane, block, alone[lane.name])
                self._add_block(lane, block, hidden[lane.name])
        yield from self._compare_branches(block)
        for lane in lanes:
            lane.release()
        yield from self._compare("block", block, alone)
        yield from self._compare("hidden", block, hidden)

    def _add_block(self, lane: Lane, block: int, residuals: Residuals) -> None:
        for sample, streams in zip(self.samples, residuals, strict=True):
            lane.add_block(block, streams, sample.step, self.streams)

    def _compare_branches(self, block: int) -> Iterator[Finding]:
        """Each subgraph alone, on the inputs that it had in the ONNX lane."""
        lane = self.simulated
        for branch in BRANCHES:
            role = SubgraphKey("transformer", block, branch).role
            found = (measure_deviation(lane.run(role, feeds), output) for feeds, output in self.calls[role])
            yield Finding(block, branch, lane.name, self.onnx.name, functools.reduce(Deviation.__add__, found))

    def _compare_predictions(self, block: int, hidden: Mapping[str, Residuals]) -> Iterator[Finding]:
        """Through the final layer, which is the host's for all of them."""
        predictions = {
            name: [
                [self.onnx.transformer.velocity(stream, sample.step) for stream in streams]
                for sample, streams in zip(self.samples, residuals, strict=True)
            ]
            for name, residuals in hidden.items()
        }
        yield from self._compare("prediction", block, predictions)

    def _compare(self, part: str, block: int, results: Mapping[str, Residuals]) -> Iterator[Finding]:
        for lane, reference in self.pairs:
            found = (
                measure_deviation(array, expected)
                for arrays, expectations in zip(results[lane], results[reference], strict=True)
                for array, expected in zip(arrays, expectations, strict=True)
            )
            yield Finding(block, part, lane, reference, functools.reduce(Deviation.__add__, found))


def _copy(residuals: Residuals) -> Residuals:
    return [[stream.copy() for stream in streams] for streams in residuals]
