"""The axes of [matrix]: values listed, ranges, prompt files, random seeds, and axes that advance together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from anima_batch.files import read_bounded
from anima_batch.job.fields import AXIS_FIELDS, Draw, FieldTable, Prompt, beside_preset, check_fields
from anima_batch.job.problem import PROBLEMS_LISTED, key_path, render_value, suggest, unknown_key
from anima_batch.job.request import TEXT_CHARACTERS, Policy

_RANGE = re.compile(r"([0-9]{1,40})\.\.([0-9]{1,40})")
PROMPTS_BYTES = 64 << 20
_INTEGER_AXES = frozenset({"seed", "steps", "width", "height"})


class AxisValue(NamedTuple):
    """The fields that one value of an axis sets, in one order for the whole axis, and the key path where it stands."""

    fields: Mapping[str, Any]
    origin: str


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis, or several zipped ones, as the list of what each of its values sets."""

    names: tuple[str, ...]
    values: tuple[AxisValue, ...]


@dataclass(slots=True)
class MatrixReader:
    """Reads one [matrix] table; `problems` and `draws`, the number of random seeds, grow while it reads."""

    workspace: Path
    policies: Mapping[str, Policy | None]
    max_images: int
    problems: list[str] = field(default_factory=list)
    draws: int = 0

    def read(self, raw: Mapping[str, Any]) -> tuple[Axis, ...]:
        """The axes in file order; those with a problem are incomplete or left out."""
        self.problems += beside_preset(raw, ("matrix",))
        axes: dict[str, Axis] = {}
        broken: set[str] = set()
        for name, entries in raw.items():
            if name in AXIS_FIELDS:
                known = len(self.problems)
                axes[name] = Axis((name,), tuple(self._axis_values(name, entries)))
                if len(self.problems) > known:
                    broken.add(name)
            elif name != "zip":
                self.problems.append(f"{key_path('matrix', name)}: {unknown_key(name, (*AXIS_FIELDS, 'zip'))}")
        merged = self._zip(axes, raw["zip"], broken) if "zip" in raw else list(axes.values())
        for axis in merged:
            self.problems += find_repeats(axis, self.policies)
        return tuple(axis for axis in merged if axis.values)

    def _axis_values(self, name: str, entries: object) -> list[AxisValue]:
        if entries == []:
            self.problems.append(f"{key_path('matrix', name)}: must have at least one value, got an empty list")
        if not isinstance(entries, list):
            return self._entry_values(name, entries, ("matrix", name))
        values: list[AxisValue] = []
        known = len(self.problems)
        for index, entry in enumerate(entries):
            values += self._entry_values(name, entry, ("matrix", name, index))
            if len(values) > self.max_images and not self._fits(len(values), key_path("matrix", name)):
                break
            if len(self.problems) - known >= PROBLEMS_LISTED:
                self.problems.append(f"{key_path('matrix', name)}: has more problems like these")
                break
        return values

    def _entry_values(self, name: str, entry: object, where: tuple[str | int, ...]) -> list[AxisValue]:
        if name in _INTEGER_AXES and isinstance(entry, str):
            return self._range_values(name, entry, where)
        if name == "seed" and isinstance(entry, dict):
            return self._random_seeds(entry, where)
        if name == "prompt" and isinstance(entry, dict) and "file" in entry:
            return self._file_prompts(entry, where)
        values, problems = check_fields(FieldTable, {name: entry}, where, list(self.policies), lead=False)
        self.problems += problems
        return [] if problems else [AxisValue(values, key_path(*where))]

    def _range_values(self, name: str, entry: str, where: tuple[str | int, ...]) -> list[AxisValue]:
        path = key_path(*where)
        match = _RANGE.fullmatch(entry)
        if match is None or int(match[1]) > int(match[2]):
            got = render_value(entry)
            self.problems.append(f'{path}: must be an integer or a range "a..b" with a <= b, got {got}')
            return []
        first, last = int(match[1]), int(match[2])
        # Limits are intervals and widths step by 16: where both ends and the second value are allowed, all are.
        for value in sorted({first, min(first + 1, last), last}):
            _, problems = check_fields(FieldTable, {name: value}, where, (), lead=False)
            if problems:
                self.problems += [f"{problem} in {render_value(entry)}" for problem in problems]
                return []
        if not self._fits(last - first + 1, path):
            return []
        return [AxisValue({name: value}, path) for value in range(first, last + 1)]

    def _random_seeds(self, entry: dict[str, Any], where: tuple[str | int, ...]) -> list[AxisValue]:
        path, count = key_path(*where), entry.get("random")
        others = [key for key in entry if key != "random"]
        self.problems += [f"{key_path(*where, key)}: {unknown_key(key, ('random',))}" for key in others]
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            got = "nothing" if count is None else render_value(count)
            self.problems.append(f"{key_path(*where, 'random')}: must be an integer of at least 1, got {got}")
            return []
        if not self._fits(count, path):
            return []
        first, self.draws = self.draws, self.draws + count
        return [AxisValue({"seed": Draw(position)}, path) for position in range(first, self.draws)]

    def _file_prompts(self, entry: dict[str, Any], where: tuple[str | int, ...]) -> list[AxisValue]:
        others = [key for key in entry if key != "file"]
        self.problems += [f"{key_path(*where, key)}: {unknown_key(key, ('file',))}" for key in others]
        path, name = key_path(*where, "file"), entry["file"]
        if not isinstance(name, str) or not name or "\0" in name:
            self.problems.append(f"{path}: must be a path relative to the workspace, got {render_value(name)}")
            return []
        try:
            text = read_bounded(self.workspace / name, PROMPTS_BYTES).decode("utf-8-sig")
        except OSError as error:
            reason = (error.strerror or "cannot be read").lower()
            self.problems.append(
                f"{path}: must be a file in the workspace {self.workspace}, got {render_value(name)}: {reason}"
            )
            return []
        except UnicodeDecodeError as error:
            self.problems.append(
                f"{path}: {name} must be UTF-8, got byte {error.object[error.start]:#04x} at {error.start}"
            )
            return []
        values = self._prompt_lines(text, where, name)
        if not values:
            self.problems.append(f"{path}: {name} must hold at least one prompt, got none: one a line, # for comments")
        return values

    def _prompt_lines(self, text: str, where: tuple[str | int, ...], name: str) -> list[AxisValue]:
        lines = ((number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), start=1))
        prompts = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
        if not self._fits(len(prompts), key_path(*where, "file")):
            return [AxisValue({"prompt": Prompt(text="")}, key_path(*where))]
        values = []
        for number, prompt in prompts:
            origin = f"{key_path(*where)} ({name} line {number})"
            values.append(AxisValue({"prompt": self._check_prompt(prompt, origin)}, origin))
        return values

    def _check_prompt(self, text: str, origin: str) -> Prompt:
        """The prompt of a line of a file; of a faulty line what is left of it."""
        if "\0" in text:
            self.problems.append(f"{origin}: must be text without NUL")
        if len(text) > TEXT_CHARACTERS:
            self.problems.append(f"{origin}: must be text of at most {TEXT_CHARACTERS} characters, got {len(text)}")
        return Prompt(text=text.replace("\0", "")[:TEXT_CHARACTERS])

    def _fits(self, count: int, path: str) -> bool:
        if count > self.max_images:
            self.problems.append(f"{path}: must be at most max_images = {self.max_images} values, got {count}")
        return count <= self.max_images

    def _zip(self, axes: dict[str, Axis], groups: object, broken: set[str]) -> list[Axis]:
        if not isinstance(groups, list) or not all(isinstance(group, list) for group in groups):
            got = render_value(groups)
            self.problems.append(f'matrix.zip: must be a list of lists such as [["width", "height"]], got {got}')
            return list(axes.values())
        merged = dict(axes)
        seen: set[str] = set()
        for index, group in enumerate(groups):
            where = ("matrix", "zip", index)
            if not self._names_axes(group, where, axes, seen) or broken & set(group):
                continue
            if not self._equally_long(group, where, axes):
                continue
            names = [name for name in axes if name in group]
            joined = _join([axes[name] for name in names])
            merged[names[0]] = joined
            for name in names[1:]:
                del merged[name]
        return list(merged.values())

    def _names_axes(
        self, group: list[Any], where: tuple[str | int, ...], axes: dict[str, Axis], seen: set[str]
    ) -> bool:
        known = len(self.problems)
        if len(group) < 2:
            self.problems.append(f"{key_path(*where)}: must name at least two axes, got {len(group)}")
        for position, name in enumerate(group):
            path = key_path(*where, position)
            if not isinstance(name, str) or name not in axes:
                hint = suggest(name, axes) if isinstance(name, str) else ""
                allowed = ", ".join(axes) or "none is given"
                self.problems.append(f"{path}: must be an axis of [matrix] ({allowed}), got {render_value(name)}{hint}")
            elif name in seen:
                self.problems.append(f"{path}: must be in one zip only, got {render_value(name)} again")
            else:
                seen.add(name)
        return len(self.problems) == known

    def _equally_long(self, group: list[str], where: tuple[str | int, ...], axes: dict[str, Axis]) -> bool:
        lengths = {name: len(axes[name].values) for name in group}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{name} {length}" for name, length in lengths.items())
            self.problems.append(f"{key_path(*where)}: zipped axes must be equally long, got {got}")
        return len(set(lengths.values())) == 1


def find_repeats(axis: Axis, policies: Mapping[str, Policy | None]) -> list[str]:
    """A problem for each value that sets the same as an earlier one of its axis, so that images would be the same."""
    seen: dict[object, AxisValue] = {}
    repeats: dict[tuple[str, str], AxisValue] = {}  # a range that overlaps another is told once
    for value in axis.values:
        key = tuple([request_value(name, item, policies) for name, item in value.fields.items()])
        if (first := seen.setdefault(key, value)) is not value:
            repeats.setdefault((value.origin, first.origin), value)
    return [
        f"{origin}: must differ from {first}, got {_render_fields(value)} again: two images would be the same"
        for (origin, first), value in repeats.items()
    ]


def _render_fields(value: AxisValue) -> str:
    return ", ".join(render_value(item.text if isinstance(item, Prompt) else item) for item in value.fields.values())


def request_value(name: str, value: Any, policies: Mapping[str, Policy | None]) -> Any:  # noqa: ANN401 - any field
    """The value as the request holds it: a prompt's text, a policy's parameters; a Draw stays one."""
    if name == "prompt":
        return value.text
    if name == "policy":
        return policies.get(value) or value
    return value


def _join(axes: list[Axis]) -> Axis:
    """Axes of one length as one axis that sets the fields of all."""
    names = tuple(name for axis in axes for name in axis.names)
    values = []
    for together in zip(*(axis.values for axis in axes), strict=True):
        fields = {name: item for value in together for name, item in value.fields.items()}
        values.append(AxisValue(fields, together[0].origin))
    return Axis(names, tuple(values))
