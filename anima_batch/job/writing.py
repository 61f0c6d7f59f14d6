"""A job file's text for images whose fields are known: what they share stands once, the rest advances together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from anima_batch.job.fields import built_in_policies
from anima_batch.job.problem import key_path, render_string
from anima_batch.job.request import REQUEST_FIELDS, Policy

_SHORT = 60  # characters of a list that stays on one line


def render_job(
    images: Sequence[Mapping[str, Any]],
    *,
    head: Mapping[str, Any],
    policies: Mapping[str, Policy] = {},
    comments: Iterable[str] = (),
) -> str:
    """TOML of a job that asks for exactly these images, in their order.

    An image has request fields by name, the same ones in each; `policy` is a policy's name, a `seed` of None is drawn
    at the first run. `head` has the file's top level, `policies` those that are not built in.
    """
    shared, varying = _part_fields(images)
    lines = [*(f"# {_printable(comment)}" for comment in comments), "schema_version = 1"]
    lines += [f"{key} = {_render(value)}" for key, value in head.items()]
    if shared:
        lines += ["", "[defaults]", *(f"{name} = {_render(value)}" for name, value in shared.items())]
    if varying:
        lines += ["", "[matrix]"]
        lines += [f"{name} = {_render_list(_axis_entries(name, images))}" for name in varying]
        if len(varying) > 1:
            names = ", ".join(map(render_string, varying))
            lines.append(f"zip = [[{names}]]")
    for name, policy in policies.items():
        if built_in_policies().get(name) != policy:
            lines += ["", f"[{key_path('policy', name)}]", *_policy_lines(policy)]
    return "\n".join(lines) + "\n"


def _part_fields(images: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Fields with one value in all images, and the names of the others; a seed that is drawn is an axis."""
    shared: dict[str, Any] = {}
    varying = []
    for name in (field for field in REQUEST_FIELDS if field in images[0]):
        value = images[0][name]
        if value is None or any(image[name] != value for image in images):
            varying.append(name)
        else:
            shared[name] = value
    return shared, varying


def _axis_entries(name: str, images: Sequence[Mapping[str, Any]]) -> list[str]:
    """The values as TOML; seeds to be drawn that follow each other are one entry."""
    entries: list[str] = []
    drawn = 0
    for value in [image[name] for image in images]:
        if value is not None:
            drawn = 0
            entries.append(_render(value))
            continue
        if drawn:
            entries.pop()
        drawn += 1
        entries.append(f"{{ random = {drawn} }}")
    return entries


def _policy_lines(policy: BaseModel) -> list[str]:
    """Every parameter; TOML has no null, and a parameter of None is one that another replaces."""
    return [f"{name} = {_render(value)}" for name, value in policy.model_dump().items() if value is not None]


def _render(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return render_string(value) if isinstance(value, str) else repr(value)


def _render_list(entries: Sequence[str]) -> str:
    line = f"[{', '.join(entries)}]"
    return line if len(line) <= _SHORT else "\n".join(["[", *(f"  {entry}," for entry in entries), "]"])


def _printable(comment: str) -> str:
    """The comment on one line without what TOML forbids in it."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in comment)
