"""The decoder of the Wan video autoencoder as a 2-D ONNX graph for one frame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from anima_batch.convert.graph import Array, Graph
from anima_batch.convert.transformer import Built

Weights = Mapping[str, Array]  # official names: `conv2.*` and `decoder.*`

_Layer = Callable[[Graph, str, str, Weights], str]

RESIDUALS = 3  # a level's residual blocks in the decoder; the entry after them enlarges, except at the last level
LEVELS = 4


def build_decoder(weights: Weights) -> Built:
    """Graph of z (1, 16, h, w) -> (1, 3, 8h, 8w).

    z is latent · std + mean; the picture is nominally -1 to 1 and not clamped.
    """
    graph = Graph("vae_decoder")
    z = graph.input("z", (1, int(weights["conv2.weight"].shape[1]), "h", "w"))
    for _, y in decode_stages(graph, z, weights):
        picture = y
    return graph.finish(picture, (1, 3, "8h", "8w"))


def decode_stages(graph: Graph, z: str, weights: Weights) -> Iterator[tuple[str, str]]:
    """Adds the decoder stage by stage and yields (official name, value); the last value is the picture."""
    x = _conv(graph, z, "conv2", weights)
    yield "conv2", x
    x = _conv(graph, x, "decoder.conv1", weights)
    yield "decoder.conv1", x
    for name, layer in _layers():
        x = layer(graph, x, name, weights)
        yield name, x
    x = graph.channel_norm(x, "decoder.head.0", weights["decoder.head.0.gamma"])
    yield "decoder.head.0", x
    yield "decoder.head.2", _conv(graph, graph.silu(x), "decoder.head.2", weights)


def _layers() -> Iterator[tuple[str, _Layer]]:
    """The decoder between its first and last convolution, in order, by official names."""
    yield "decoder.middle.0", _add_residual
    yield "decoder.middle.1", _add_attention
    yield "decoder.middle.2", _add_residual
    for index in range(LEVELS * (RESIDUALS + 1) - 1):
        yield f"decoder.upsamples.{index}", _add_upsampling if index % (RESIDUALS + 1) == RESIDUALS else _add_residual


def _add_residual(graph: Graph, x: str, name: str, weights: Weights) -> str:
    y = x
    for norm, conv in (("residual.0", "residual.2"), ("residual.3", "residual.6")):
        y = graph.silu(graph.channel_norm(y, f"{name}.{norm}", weights[f"{name}.{norm}.gamma"]))
        y = _conv(graph, y, f"{name}.{conv}", weights)
    if f"{name}.shortcut.weight" in weights:
        x = _conv(graph, x, f"{name}.shortcut", weights)
    return graph.op("Add", x, y)


def _add_attention(graph: Graph, x: str, name: str, weights: Weights) -> str:
    """One head over all h·w positions."""
    channels = weights[f"{name}.proj.weight"].shape[0]
    normed = graph.channel_norm(x, f"{name}.norm", weights[f"{name}.norm.gamma"])
    parts = graph.ops("Split", 3, _conv(graph, normed, f"{name}.to_qkv", weights), axis=1, num_outputs=3)
    rows = graph.constant([1, 1, channels, -1])
    q, k, v = (
        graph.op("Transpose", graph.op("Reshape", part, rows), perm=[0, 3, 1, 2]) for part in parts
    )  # (1, h·w, 1, C)
    y = graph.op("Transpose", graph.attend(q, k, v, channels), perm=[0, 2, 1])  # (1, C, h·w)
    y = graph.op("Reshape", y, graph.op("Shape", x))
    return graph.op("Add", x, _conv(graph, y, f"{name}.proj", weights))


def _add_upsampling(graph: Graph, x: str, name: str, weights: Weights) -> str:
    """Twice the size, then half the channels; `time_conv` makes further frames of a video and is not used."""
    return _conv(graph, graph.upsample(x), f"{name}.resample.1", weights)


def _conv(graph: Graph, x: str, name: str, weights: Weights) -> str:
    """A convolution by name, of a 3-D one its last time slice.

    A causal convolution puts two zero frames before the first, so for one frame only the last slice acts.
    """
    weight = weights[f"{name}.weight"]
    plane = weight[:, :, -1] if weight.ndim == 5 else weight
    return graph.conv(x, name, plane, weights[f"{name}.bias"])
