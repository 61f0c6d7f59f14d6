"""What the images of a job differ in: the rows, columns and filters of the grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anima_batch.compare import Record
from anima_batch.job import make_slug

PROMPT_CHARACTERS = 4000  # of one prompt on the page; the manifest has all
_PART_OF_SETTING = ("sampler", "steps", "policy")


@dataclass(frozen=True)
class Axis:
    """One field with its values in the order in which they come; `places` has the index of each image's value."""

    key: str
    label: str
    values: list[dict[str, str]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


def find_axes(records: Sequence[Record]) -> list[Axis]:
    """The fields that differ between the images, those of the grid's default rows and columns first.

    Sampler, steps and policy are one axis, `setting`; each is an axis of its own too where more than one differs.
    """
    axes = [_read(records, key, label, describe) for key, (label, describe) in _FIELDS.items()]
    differing = [axis for axis in axes if len(axis.values) > 1]
    parts = [axis for axis in differing if axis.key in _PART_OF_SETTING]
    dropped = {parts[0].key} if len(parts) == 1 else set()
    return [axis for axis in differing if axis.key not in dropped]


def shorten_prompt(text: str) -> str:
    """The text, and how much was cut off."""
    cut = len(text) - PROMPT_CHARACTERS
    return text if cut <= 0 else f"{text[:PROMPT_CHARACTERS]} ... ({cut} more characters: see the manifest)"


def prompt_label(record: Record) -> str:
    """The prompt's name in the job, which its file name begins with; the text where it has none."""
    request, policy = record.manifest.request, record.manifest.sampling.policy["name"]
    slug = record.stem.removesuffix(f"-{request.seed}-{policy}-{record.manifest.request_id[:12]}")
    return shorten_prompt(request.prompt) if slug in (make_slug(request.prompt), record.stem) else slug


def _read(records: Sequence[Record], key: str, label: str, describe: Callable[[Record], tuple[str, str]]) -> Axis:
    axis = Axis(key, label)
    known: dict[tuple[str, str], int] = {}
    for record in records:
        found = describe(record)
        if found not in known:
            known[found] = len(known)
            axis.values.append({"label": found[0], "detail": found[1]})
        axis.places.append(known[found])
    return axis


def _plain(read: Callable[[Any], object]) -> Callable[[Record], tuple[str, str]]:
    return lambda record: (str(read(record.manifest.request)), "")


def _describe_prompt(record: Record) -> tuple[str, str]:
    label, text = prompt_label(record), shorten_prompt(record.manifest.request.prompt)
    return label, "" if label == text else text


_FIELDS: Mapping[str, tuple[str, Callable[[Record], tuple[str, str]]]] = {
    "prompt": ("prompt", _describe_prompt),
    "setting": ("setting", lambda record: (record.setting, "")),
    "seed": ("seed", _plain(lambda request: request.seed)),
    "size": ("size", _plain(lambda request: f"{request.width}x{request.height}")),
    "negative_prompt": ("negative prompt", _plain(lambda request: shorten_prompt(request.negative_prompt) or "(none)")),
    "guidance_scale": ("guidance scale", _plain(lambda request: f"{request.guidance_scale:g}")),
    "shift": ("shift", _plain(lambda request: f"{request.shift:g}")),
    "schedule": ("schedule", _plain(lambda request: request.schedule)),
    "sampler": ("sampler", _plain(lambda request: request.sampler)),
    "steps": ("steps", _plain(lambda request: request.steps)),
    "policy": ("policy", lambda record: (str(record.manifest.sampling.policy["name"]), "")),
    "noise": ("noise", _plain(lambda request: request.noise)),
    "model_set": ("model set", lambda record: (record.manifest.model_set.name, record.manifest.model_set.digest[:12])),
}
