"""Lanes side by side: what a fault in one graph of one lane is seen in, and what it is not."""

import numpy as np
import pytest

from anima_batch.anima.conditioning import Conditioning
from anima_batch.anima.pipeline import open_pipeline
from anima_batch.backends.onnx import OnnxBackend
from anima_batch.convert.rknn.lanes import Comparison, Sample, make_lane
from anima_batch.job import RunSpec
from anima_batch.sampling import make_noise, make_sigmas

STREAMS = ("cond", "uncond")
FACTOR = np.float32(1.25)  # exact in float32, where outputs are so large or larger than the least normal number


class LoudBackend(OnnxBackend):
    """ONNX Runtime, but the outputs of one graph file come out larger by FACTOR."""

    def __init__(self, name):
        super().__init__()
        self._loud = name

    def open(self, path, core=0):
        session = super().open(path, core)
        return LoudSession(session) if path.name == self._loud else session


class LoudSession:
    def __init__(self, session):
        self.inputs = session.inputs
        self._session = session

    def run(self, feeds):
        return self._session.run(feeds) * FACTOR

    def close(self):
        self._session.close()


@pytest.fixture(scope="module")
def pipeline(golden_set):
    pipeline = open_pipeline(golden_set, "onnx", RunSpec())
    yield pipeline
    pipeline.close()


@pytest.fixture(scope="module")
def transformer(pipeline):
    conditioning = Conditioning(*pipeline.encode(["a red house", ""]))
    return pipeline.make_transformer(make_sigmas("simple", 4, 3.0), conditioning, 64, 64)


def compare(pipeline, transformer, backend, steps=(1, 3)):
    """Findings by (block, part) of golden blocks 0 and 1, and the recorded calls of the last block."""
    calls = {}
    samples = [Sample(step, make_noise("numpy", step, (16, 8, 8))) for step in steps]
    comparison = Comparison(
        onnx=make_lane("onnx", transformer, pipeline.model_set, OnnxBackend(), calls),
        calls=calls,
        simulated=make_lane("rknn", transformer, pipeline.model_set, backend),
        torch=None,
        samples=samples,
        streams=STREAMS,
    )
    findings = list(comparison.run(2))
    assert {(finding.lane, finding.reference) for finding in findings} == {("rknn", "onnx")}
    return {(finding.block, finding.part): finding.deviation for finding in findings}, calls, samples


def test_the_same_graphs_agree_everywhere(pipeline, transformer):
    found, calls, _ = compare(pipeline, transformer, OnnxBackend())
    assert {role.split(".")[1] for role in calls} == {"01"}  # of one block at a time: they are large
    parts = ["self_attn", "cross_attn", "mlp", "block", "hidden"]
    assert list(found) == [(block, part) for block in (0, 1) for part in parts] + [(1, "prediction")]
    # The same bits, so that only the cosine's own rounding is left.
    assert all(deviation.max_abs == 0 and abs(deviation.cosine - 1) < 1e-12 for deviation in found.values())


def test_a_fault_shows_in_its_graph_its_block_and_all_that_follows(pipeline, transformer):
    found, _, _ = compare(pipeline, transformer, LoudBackend("00.cross_attn.onnx"))
    clean = {(0, "self_attn"), (0, "mlp"), (1, "self_attn"), (1, "cross_attn"), (1, "mlp"), (1, "block")}
    assert {key for key, deviation in found.items() if deviation.max_abs == 0} == clean


def test_a_graph_alone_is_measured_on_its_own_output(pipeline, transformer):
    found, calls, _ = compare(pipeline, transformer, LoudBackend("01.mlp.onnx"))
    outputs = np.concatenate([output.ravel() for _, output in calls["transformer.01.mlp"]]).astype(np.float64)
    assert found[1, "mlp"].values == outputs.size
    # Rounding of FACTOR times a float32: half a unit of 2^-24 of each value.
    assert found[1, "mlp"].mae == pytest.approx(np.abs(outputs).mean() * (FACTOR - 1), rel=1e-6)


def test_inputs_are_those_that_the_transformer_gives(pipeline, transformer):
    _, calls, samples = compare(pipeline, transformer, OnnxBackend())
    expected = []
    for sample in samples:
        residuals = [transformer.embed(sample.latents) for _ in STREAMS]
        seen = {}
        lane = make_lane("onnx", transformer, pipeline.model_set, OnnxBackend(), seen)
        for block in (0, 1):
            lane.add_block(block, residuals, sample.step, STREAMS)
        lane.release()
        expected += [feeds["z"] for feeds, _ in seen["transformer.01.self_attn"]]
    got = [feeds["z"] for feeds, _ in calls["transformer.01.self_attn"]]
    assert len(got) == len(samples) * len(STREAMS)
    assert all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))


def test_all_sessions_of_a_block_are_closed_with_it(pipeline, transformer):
    opened = []

    class Counting(OnnxBackend):
        def open(self, path, core=0):
            opened.append(path.name)
            return super().open(path, core)

    compare(pipeline, transformer, Counting())
    assert opened == [f"{block:02d}.{branch}.onnx" for block in (0, 1) for branch in ("self_attn", "cross_attn", "mlp")]
