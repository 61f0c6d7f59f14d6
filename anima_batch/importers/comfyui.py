"""ComfyUI's API JSON of a plain text-to-image graph: one KSampler, and what leads to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anima_batch.importers.wanted import FieldReader, ProblemError, Wanted

_LATENTS = ("EmptyLatentImage", "EmptySD3LatentImage", "EmptyQwenImageLayeredLatentImage")
_SHIFTS = ("ModelSamplingSD3", "ModelSamplingAuraFlow")
_TEXTS = ("text", "value", "string")  # the one input of nodes that only hold a text or a number
_SILENT = ("SaveImage", "PreviewImage", "VAEDecode", "VAELoader", "CLIPLoader")


def read_graph(content: object, name: str, problems: list[str]) -> Iterator[Wanted]:
    """The image of a graph, or of the request that carries it to the server."""
    graph = content["prompt"] if isinstance(content, dict) and isinstance(content.get("prompt"), dict) else content
    try:
        yield _Graph(_check_graph(graph)).read().finish(name)
    except ProblemError as error:
        problems.append(f"{name}: {error}")


def _check_graph(graph: object) -> Mapping[str, Any]:
    if isinstance(graph, dict) and "nodes" in graph:
        raise ProblemError("is a workflow of the editor: save it with Workflow > Export (API)")
    nodes = graph.values() if isinstance(graph, dict) else []
    if not nodes or not all(isinstance(node, dict) and isinstance(node.get("class_type"), str) for node in nodes):
        raise ProblemError("must be API JSON: an object of nodes with class_type and inputs")
    assert isinstance(graph, dict)
    return graph


class _Graph:
    def __init__(self, nodes: Mapping[str, Any]) -> None:
        self._nodes = nodes
        self._used: set[str] = set()
        self._reader = FieldReader()

    def read(self) -> FieldReader:
        """The fields of the only sampler and of the nodes it hangs on; the other nodes are ignored."""
        samplers = [key for key, node in self._nodes.items() if "sampler" in node["class_type"].lower()]
        samplers = [key for key in samplers if not self._nodes[key]["class_type"].endswith("Select")]
        if len(samplers) != 1 or self._nodes[samplers[0]]["class_type"] != "KSampler":
            found = ", ".join(self._describe(key) for key in samplers) or "none"
            raise ProblemError(f"must have one KSampler and no other sampler, got {found}")
        sampler, reader = samplers[0], self._reader
        self._used.add(sampler)
        for option, field in (("seed", "seed"), ("steps", "steps")):
            reader.take_integer(field, f"node {sampler}.{option}", self._value(sampler, option))
        reader.take_number("guidance_scale", f"node {sampler}.cfg", self._value(sampler, "cfg"))
        if (denoise := self._value(sampler, "denoise", 1.0)) != 1:
            raise ProblemError(
                f"{self._describe(sampler)}: denoise must be 1, got {denoise!r}: it starts from a picture"
            )
        reader.take_sampler("sampler_name", str(self._value(sampler, "sampler_name")))
        reader.take_schedule("scheduler", str(self._value(sampler, "scheduler")))
        reader.take_prompt("prompt", self._text(sampler, "positive"))
        reader.take_prompt("negative_prompt", self._text(sampler, "negative"))
        self._take_latents(self._follow(sampler, "latent_image"))
        self._take_model(self._follow(sampler, "model"))
        for key, node in self._nodes.items():
            if key not in self._used and node["class_type"] not in _SILENT:
                reader.ignore(self._describe(key))
        return reader

    def _describe(self, key: str) -> str:
        return f"node {key} ({self._nodes[key]['class_type']})"

    def _inputs(self, key: str) -> Mapping[str, Any]:
        inputs = self._nodes[key].get("inputs")
        return inputs if isinstance(inputs, dict) else {}

    def _follow(self, key: str, name: str) -> str:
        """The node that an input is linked to."""
        link = self._inputs(key).get(name)
        if not (isinstance(link, list) and link and str(link[0]) in self._nodes):
            raise ProblemError(f"{self._describe(key)}: {name} must be linked to a node, got {link!r:.60}")
        self._used.add(str(link[0]))
        return str(link[0])

    def _value(self, key: str, name: str, default: object = None) -> object:
        """An input's value, also where a node that only holds it is linked there."""
        value = self._inputs(key).get(name, default)
        if not isinstance(value, list):
            return value
        holder = self._follow(key, name)
        held = [inner for inner in self._inputs(holder).values() if not isinstance(inner, list)]
        if len(held) != 1 or len(self._inputs(holder)) != 1:
            raise ProblemError(f"{self._describe(key)}: {name} must be a value, got a link to {self._describe(holder)}")
        return held[0]

    def _text(self, key: str, name: str) -> str:
        """The text of the CLIPTextEncode behind an input; zeroed conditioning has none."""
        encoder = self._follow(key, name)
        kind = self._nodes[encoder]["class_type"]
        if kind == "ConditioningZeroOut":
            self._follow(encoder, "conditioning")
            self._reader.ignored.append(f"{self._describe(encoder)}: an empty prompt is taken")
            return ""
        if kind != "CLIPTextEncode":
            raise ProblemError(f"{self._describe(key)}: {name} must come from CLIPTextEncode, got {kind}")
        text = self._value(encoder, "text")
        if not isinstance(text, str):
            raise ProblemError(f"{self._describe(encoder)}: text must be text, got {text!r:.60}")
        return text

    def _take_latents(self, key: str) -> None:
        if self._nodes[key]["class_type"] not in _LATENTS:
            raise ProblemError(f"latent_image must come from {_LATENTS[0]}, got {self._describe(key)}")
        for name in ("width", "height"):
            self._reader.take_integer(name, f"node {key}.{name}", self._value(key, name))
        if (batch := self._value(key, "batch_size", 1)) != 1:
            self._reader.ignore(f"batch_size: {batch}", "its later images have noise that no seed gives; one is taken")

    def _take_model(self, key: str) -> None:
        """The shift on the way to the loader; what else changes the model is ignored."""
        seen: set[str] = set()
        while key not in seen:
            seen.add(key)
            kind = self._nodes[key]["class_type"]
            if kind in _SHIFTS:
                self._reader.take_number("shift", f"node {key}.shift", self._value(key, "shift"))
            else:
                names = [value for value in self._inputs(key).values() if isinstance(value, str)]
                self._reader.ignore(f"{self._describe(key)}: {', '.join(names)}".rstrip(": "))
            if not isinstance(self._inputs(key).get("model"), list):
                return
            key = self._follow(key, "model")
        raise ProblemError(f"{self._describe(key)}: its model leads back to itself")
