"""Request fields as a job file names them: prompts with a name, policies by name, presets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from anima_batch.job.problem import bad_keys, check_table, key_path, not_one_of
from anima_batch.job.request import (
    FullPolicy,
    GuidanceScale,
    NoiseKind,
    Pixels,
    Policy,
    Sampler,
    Schedule,
    Seed,
    Shift,
    SpectrumPolicy,
    Steps,
    Text,
)

PRESET_FIELDS = ("sampler", "steps", "policy")


class Prompt(BaseModel):
    """A prompt's text, and the name it may have in file names, [[exclude]] and reports."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: Text | None = Field(default=None, min_length=1, description="text that is not empty")
    text: Text

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: object) -> object:
        return {"text": value} if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Draw:
    """A random seed that is not drawn yet; `position` counts the random seeds of the file from 0."""

    position: int


@dataclass(frozen=True, slots=True)
class Preset:
    """Sampler, steps and a built-in policy by its name, that go well together."""

    sampler: Sampler
    steps: int
    policy: str


def _absent(description: str | None = None) -> Any:  # noqa: ANN401 - stands for any field's type
    return Field(default=None, description=description) if description else Field(default=None)


class _FieldTable(BaseModel):
    """Any of the request's fields; those not given are absent from `model_fields_set` and never read."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    prompt: Any = _absent()
    negative_prompt: Text = _absent()
    seed: Seed = _absent()
    width: Pixels = _absent()
    height: Pixels = _absent()
    steps: Steps = _absent()
    guidance_scale: GuidanceScale = _absent()
    shift: Shift = _absent()
    schedule: Schedule = _absent()
    sampler: Sampler = _absent()
    noise: NoiseKind = _absent()
    policy: Text = _absent()
    preset: Text = _absent()


class FieldTable(_FieldTable):
    """[defaults], one [[include]] or one value of [matrix]."""

    prompt: Prompt = _absent(description="text or { name, text }")


class ExcludeTable(_FieldTable):
    """One [[exclude]]; its prompt is a prompt's name or text."""

    prompt: Text = _absent()


AXIS_FIELDS = tuple(_FieldTable.model_fields)


def presets() -> dict[str, Preset]:
    """The presets by name."""
    # The fewest passes that end as near to the converged picture as 20 steps of Euler: docs/policies.md.
    return {"balanced": Preset(sampler="ab2", steps=11, policy="full")}


def built_in_policies() -> dict[str, Policy]:
    """The policies that every job knows by name; a file cannot redefine them."""
    return {"full": FullPolicy(), "spectrum": SpectrumPolicy()}


def check_fields(
    model: type[FieldTable | ExcludeTable],
    raw: Mapping[str, Any],
    where: tuple[str | int, ...],
    policy_names: Collection[str],
    *,
    lead: bool = True,
) -> tuple[dict[str, Any], list[str]]:
    """The fields given and valid, a preset replaced by what it sets, and the problems.

    `lead` as in check_table.
    """
    table, problems = check_table(model, raw, where, lead=lead)
    if table is None:
        wrong = bad_keys(model, raw)
        table = model.model_validate({key: value for key, value in raw.items() if key not in wrong})
    values = {name: getattr(table, name) for name in raw if name in table.model_fields_set}
    if "policy" in values and values["policy"] not in policy_names:
        path = key_path(*where, "policy") if lead else key_path(*where)
        problems.append(f"{path}: {not_one_of(values.pop('policy'), policy_names)}")
    if "preset" in raw:
        problems += beside_preset(raw, where)
    if "preset" in values:
        name = values.pop("preset")
        if (preset := presets().get(name)) is None:
            path = key_path(*where, "preset") if lead else key_path(*where)
            problems.append(f"{path}: {not_one_of(name, presets())}")
        else:
            values |= {"sampler": preset.sampler, "steps": preset.steps, "policy": preset.policy}
    return values, problems


def beside_preset(raw: Mapping[str, Any], where: tuple[str | int, ...]) -> list[str]:
    """A problem for each field of the table that its preset sets too."""
    if "preset" not in raw:
        return []
    return [
        f"{key_path(*where, name)}: must not be given beside preset, which sets sampler, steps and policy at once"
        for name in PRESET_FIELDS
        if name in raw
    ]
