"""Random weights under the official names, scaled so that a whole run stays in range: for tests and measurements."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from anima_batch.convert import layouts
from anima_batch.convert.layouts import Shape
from anima_batch.files import make_folder, storage_errors

_DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
_BLOCK_VALUES = 1 << 22

# Gains on 1/√fan-in where 1 is too much: branches are added to what they read; a picture's values rarely pass ±1.
_GAINS = {r".*(output_proj|o_proj|layer2|down_proj|mlp\.2)\.weight": 0.5, r"decoder\.head\.2\.weight": 0.75}


@dataclass(frozen=True)
class ModelDims:
    """Dimensions of all four networks; the adapter must fit the transformer and Qwen."""

    transformer: layouts.TransformerDims
    adapter: layouts.AdapterDims
    qwen: layouts.QwenDims
    vae: layouts.VaeDims


@dataclass(frozen=True)
class WeightFiles:
    """The three files of a release."""

    transformer: Path
    text_encoder: Path
    vae: Path


def write_random_weights(
    folder: Path,
    dims: ModelDims,
    seed: int,
    dtype: Literal["BF16", "F16", "F32"] = "BF16",
    *,
    with_encoder: bool = False,
) -> WeightFiles:
    """Writes the files as an official release names its tensors; the same seed gives the same bytes.

    A tensor's values depend on the seed and its name alone. A few million values are in memory at a time. The
    autoencoder's encoder is part of the release, but nothing here reads it.
    """
    make_folder(folder)
    files = WeightFiles(*(folder / f"{name}.safetensors" for name in ("transformer", "text_encoder", "vae")))
    transformer = _prefixed("net.", layouts.transformer_shapes(dims.transformer))
    adapter = _prefixed("net.llm_adapter.", layouts.adapter_shapes(dims.adapter))
    _write_file(files.transformer, transformer | adapter, seed, dtype)
    _write_file(files.text_encoder, _prefixed("model.", layouts.qwen_shapes(dims.qwen)), seed, dtype)
    encoder = layouts.vae_encoder_shapes(dims.vae) if with_encoder else {}
    _write_file(files.vae, layouts.vae_shapes(dims.vae) | encoder, seed, dtype)
    return files


def _prefixed(prefix: str, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    return {prefix + name: shape for name, shape in shapes.items()}


def _write_file(path: Path, shapes: Mapping[str, Shape], seed: int, dtype: str) -> None:
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * _DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begin on a multiple of 8
    with storage_errors(path), path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            _write_tensor(stream, name, shape, seed, _DTYPES[dtype])


def _write_tensor(stream: BinaryIO, name: str, shape: Shape, seed: int, dtype: np.dtype[np.generic]) -> None:
    for block in _draw_blocks(name, shape, seed):
        stream.write(block.astype(dtype).tobytes())


def make_tensor(name: str, shape: Shape, seed: int) -> npt.NDArray[np.float32]:
    """The same values as they are before they are rounded to a file's type."""
    return np.concatenate(list(_draw_blocks(name, shape, seed))).reshape(shape)


def _draw_blocks(name: str, shape: Shape, seed: int) -> Iterator[npt.NDArray[np.float32]]:
    random = np.random.default_rng((seed, zlib.crc32(name.encode())))
    mean, deviation = choose_scale(name, shape)
    size = math.prod(shape)
    for start in range(0, size, _BLOCK_VALUES):
        block = random.standard_normal(min(_BLOCK_VALUES, size - start), dtype=np.float32)
        yield block * np.float32(deviation) + np.float32(mean)


def choose_scale(name: str, shape: Shape) -> tuple[float, float]:
    """(mean, standard deviation) of a tensor's values: norms about 1, small biases, matrices that keep the variance."""
    if name.endswith(("cross_attn.q_norm.weight", "cross_attn.k_norm.weight")):
        return 2.0, 0.1  # sharp enough for a few words to count against the zero rows, which pad the context to 512
    if name.endswith("gamma") or (len(shape) == 1 and name.endswith("weight")):
        return 1.0, 0.1
    if name.endswith("bias"):
        return 0.0, 0.05
    if name.endswith(("embed.weight", "embed_tokens.weight")):
        return 0.0, 1.0
    fan_in = shape[1] * math.prod(shape[-2:] if len(shape) >= 4 else ())  # of a 3-D kernel only one time slice acts
    gain = next((gain for pattern, gain in _GAINS.items() if re.fullmatch(pattern, name)), 1.0)
    return 0.0, gain / math.sqrt(fan_in)
