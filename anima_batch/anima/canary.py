"""A known question to the NPU: as long as nothing is wrong with it, the answer has the same bits each time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anima_batch.anima.ops import Array
from anima_batch.backends.base import TensorSpec
from anima_batch.backends.staging import Staging
from anima_batch.files import xxh3_128_bytes


def run_canary(staging: Staging, roles: Sequence[str]) -> str:
    """One digest over the outputs of the roles' graphs for fixed inputs, 32 hex digits; raises BackendError.

    Their inputs must have sizes of their own, as compiled graphs do.
    """
    answers = []
    for role in roles:
        with staging.session(role) as session:
            feeds = {spec.name: make_fixed_input(spec, number) for number, spec in enumerate(session.inputs)}
            answers.append(np.ascontiguousarray(session.run(feeds), np.float32).tobytes())
    return xxh3_128_bytes(b"".join(answers))


def make_fixed_input(spec: TensorSpec, number: int) -> Array:
    """Values of -1 to 1 in steps of 2⁻⁹, float32, the same bits on every machine; float16 holds them exactly.

    Knuth's multiplicative hash of the index (TAOCP 3, 6.4), its top ten bits.
    """
    shape = tuple(int(length) for length in spec.shape)
    index = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(number << 32 | 1)
    hashed = index * np.uint64(2654435761) % np.uint64(1 << 32) >> np.uint64(22)
    values: Array = hashed.astype(np.float32) / np.float32(512) - np.float32(1)
    return values.reshape(shape)
