"""The host's maths of a step against straightforward NumPy and PyTorch: `python -m studies.host_maths`, one table.

Adding a branch's output and norming the stream for the next one, as often as a step with guidance does it; the three
ways take turns, so that a busy machine is unfair to none of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from anima_batch.anima import ops
from anima_batch.anima.config import BRANCHES

STREAMS = 2
OURS = "row blocks"
SIZES = (64, 128, 256, 512, 1024)  # KiB


def main() -> None:
    """Prints milliseconds a step and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--blocks", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(2)
    times = measure(make_ways(options.tokens, options.hidden), options.rounds)
    calls = STREAMS * options.blocks * len(BRANCHES)
    figures = {name: 1e3 * calls * seconds for name, seconds in times.items()}
    ours = figures[OURS]
    if options.json:
        print(json.dumps(figures))
        return
    for name, milliseconds in figures.items():
        print(f"{name:<44} {milliseconds:8.0f} ms a step   row blocks take {ours / milliseconds:.2f} of it")


def make_ways(tokens: int, hidden: int) -> Mapping[str, Callable[[], object]]:
    """Each way to do it, on arrays of its own."""
    rng = np.random.default_rng(1)
    x, output = rng.standard_normal((2, tokens, hidden), np.float32)
    gate, one_plus_scale, shift = rng.standard_normal((3, hidden), np.float32) * np.float32(0.1)
    one_plus_scale += 1
    stream, z = x.copy(), np.empty_like(x)

    def straightforward() -> object:
        y = x + gate * output
        return (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6) * one_plus_scale + shift

    def row_blocks(kibibytes: int) -> Callable[[], object]:
        added, to_z = ops.Gated(gate, output), ops.Norm(one_plus_scale, shift, z)
        return lambda: ops.advance(stream, added, to_z, block_bytes=kibibytes << 10)

    t_x, t_output, t_gate, t_scale, t_shift = map(torch.from_numpy, (x.copy(), output, gate, one_plus_scale, shift))
    t_stream = t_x.clone()
    norm = torch.nn.functional.layer_norm

    def torch_eager() -> object:
        y = t_x + t_gate * t_output
        return norm(y, (hidden,), eps=1e-6) * t_scale + t_shift

    def torch_best() -> object:
        t_stream.addcmul_(t_output, t_gate)
        return norm(t_stream, (hidden,), t_scale, t_shift, 1e-6)

    return {
        OURS: row_blocks(ops.BLOCK_BYTES >> 10),
        "straightforward NumPy": straightforward,
        "torch, fused layer_norm, 2 threads": torch_eager,
        "torch, all in layer_norm and addcmul_, 2 threads": torch_best,
        **{f"row blocks of {size} KiB": row_blocks(size) for size in SIZES},
    }


def measure(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of a call, after one that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for name, way in ways.items():
                started = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


if __name__ == "__main__":
    main()
