"""Official weights and tokenizers to a model set of ONNX graphs, one component in memory at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from safetensors.numpy import save
from tokenizers import Tokenizer

from anima_batch import __version__
from anima_batch.anima.config import subgraph_keys
from anima_batch.convert import sources
from anima_batch.convert.graph import OPSET, Array
from anima_batch.convert.inputs import ConvertOptions, Inputs, open_inputs
from anima_batch.convert.partial import check_out, partial_folder
from anima_batch.convert.sources import DtypeRule, Tensors
from anima_batch.convert.text import build_adapter, build_qwen
from anima_batch.convert.transformer import BUILDERS, Built
from anima_batch.convert.vae import build_decoder
from anima_batch.files import file_digests, make_folder, write_atomic
from anima_batch.model_set import (
    Component,
    ModelSet,
    ModelSetFile,
    Source,
    TextConfig,
    TransformerConfig,
    VaeConfig,
    describe_component,
    load_model_set,
    write_description,
)

QWEN_ROPE_THETA = 1e6  # Qwen3-0.6B's configuration
ADAPTER_ROPE_THETA = 1e4  # the adapter's, as trained

__all__ = ["ConvertOptions", "convert_model_set"]


@dataclass(frozen=True)
class _Part:
    """A file of the set to be; `build` reads its weights and makes it."""

    role: str
    path: str
    build: Callable[[], Built]


def convert_model_set(options: ConvertOptions, on_progress: Callable[[str], None]) -> ModelSet:
    """The model set written to `options.out`; on_progress is told the role of each component before it is made.

    Files are checked before the first is written. Raises UsageError for wrong ones, with one line a fault, and
    StorageError; after a failure or a power cut there is nothing under the final name.
    """
    check_out(options.out)
    inputs = open_inputs(options)
    parts = [
        *_text_parts(inputs, options.dtype),
        *_transformer_parts(inputs, options.dtype),
        *_vae_parts(inputs, options.dtype),
    ]
    versions = {"anima_batch": __version__, "onnx": onnx.__version__, "numpy": np.__version__}
    built_with = {**versions, "opset": str(OPSET), "dtype": options.dtype}
    with partial_folder(options.out) as folder:
        components = []
        for part in parts:
            on_progress(part.role)
            components.append(_write_part(part, folder, built_with))
        write_description(folder, _describe(inputs, options, components))
    return load_model_set(options.out)


def _write_part(part: _Part, folder: Path, built_with: Mapping[str, str]) -> Component:
    """A function of its own so that the component is gone from memory before the next is made."""
    data, inputs, outputs = part.build()
    make_folder((folder / part.path).parent)
    write_atomic(folder / part.path, data)
    return describe_component(folder, part.role, part.path, built_with, inputs, outputs)


def _text_parts(inputs: Inputs, rule: DtypeRule) -> Iterator[_Part]:
    qwen, adapter = (Tensors(source, rule) for source in (inputs.qwen, inputs.adapter))
    yield _Part("qwen.tokenizer", "qwen/tokenizer.json", functools.partial(_pack_tokenizer, inputs.qwen_tokenizer))
    yield _Part(
        "qwen.embedding",
        "qwen/embedding.safetensors",
        functools.partial(_pack, qwen, {"embed_tokens.weight": "weight"}),
    )
    yield _Part("qwen.model", "qwen/model.onnx", functools.partial(build_qwen, qwen))
    yield _Part("t5.tokenizer", "t5/tokenizer.json", functools.partial(_pack_tokenizer, inputs.t5_tokenizer))
    yield _Part(
        "adapter.embedding",
        "adapter/embedding.safetensors",
        functools.partial(_pack, adapter, {"embed.weight": "weight"}),
    )
    yield _Part("adapter.model", "adapter/model.onnx", functools.partial(build_adapter, adapter))


def _transformer_parts(inputs: Inputs, rule: DtypeRule) -> Iterator[_Part]:
    source = inputs.transformer
    host = Tensors(sources.leave_out(source, rf"blocks\.\d+\.({'|'.join(BUILDERS)})\."), rule)
    yield _Part(
        "transformer.host",
        "transformer/host.safetensors",
        functools.partial(_pack, host, {name: name for name in host}),
    )
    for key in subgraph_keys(inputs.transformer_dims.blocks):
        weights = Tensors(sources.select(source, f"blocks.{key.block}.{key.branch}."), rule)
        path = f"transformer/{key.block:02d}.{key.branch}.onnx"
        yield _Part(key.role, path, functools.partial(BUILDERS[key.branch], weights))


def _vae_parts(inputs: Inputs, rule: DtypeRule) -> Iterator[_Part]:
    yield _Part("vae.decoder", "vae/decoder.onnx", functools.partial(build_decoder, Tensors(inputs.vae, rule)))


def _pack(tensors: Mapping[str, Array], names: Mapping[str, str]) -> Built:
    """A safetensors file of some tensors, each under its new name."""
    return save({new: tensors[name] for name, new in names.items()}), (), ()


def _pack_tokenizer(tokenizer: Tokenizer) -> Built:
    return tokenizer.to_str().encode(), (), ()


def _describe(inputs: Inputs, options: ConvertOptions, components: Sequence[Component]) -> ModelSetFile:
    transformer = inputs.transformer_dims
    return ModelSetFile(
        schema_version=1,
        name=options.name,
        license=options.license,
        sizes=options.sizes,
        transformer=TransformerConfig(
            blocks=transformer.blocks,
            hidden=transformer.hidden,
            head_dim=transformer.head_dim,
            context_dim=transformer.context_dim,
            latent_channels=transformer.latent_channels,
        ),
        text=TextConfig(
            context_rows=options.context_rows,
            empty_prompt=options.empty_prompt,
            empty_token_id=options.empty_token_id,
            head_dim=inputs.qwen_dims.head_dim,
            rope_theta=QWEN_ROPE_THETA,
            adapter_head_dim=inputs.adapter_dims.head_dim,
            adapter_rope_theta=ADAPTER_ROPE_THETA,
        ),
        vae=VaeConfig(latent_mean=options.latent_mean, latent_std=options.latent_std, tile=options.vae_tile),
        sources=tuple(
            Source(role=role, file=path.name, bytes=path.stat().st_size, sha256=file_digests(path)[0])
            for role, path in (
                ("transformer", options.transformer),
                ("text_encoder", options.text_encoder),
                ("vae", options.vae),
            )
        ),
        components=tuple(components),
    )
