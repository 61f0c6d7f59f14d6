"""A job's images: the job file loaded and checked, its matrix expanded, its random seeds drawn."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anima_batch.errors import JobError
from anima_batch.job.axes import Axis, AxisValue, find_repeats, request_value
from anima_batch.job.combinations import Combinations, combine
from anima_batch.job.fields import Draw
from anima_batch.job.image import JobImage, exclude_text
from anima_batch.job.problem import key_path
from anima_batch.job.request import build_request
from anima_batch.job.spec import JobSpec, Size, read_job

_TANGLED = "must leave combinations that can be counted, got too many tables that overlap: ask for fewer"


@dataclass(frozen=True, slots=True)
class Expansion:
    """The images of a job in order: the combinations of [matrix], then the [[include]]s.

    `drawn` are the random seeds by position, those given and those new; a seed that an edit left without use stays.
    """

    images: tuple[JobImage, ...]
    warnings: tuple[str, ...]
    drawn: tuple[int, ...]


def load_job(path: Path, workspace: Path, *, sizes_of: Callable[[str], Sequence[Size]] | None = None) -> JobSpec:
    """The job of a file; raises JobError with every problem of the file.

    `sizes_of` gives the sizes of a model set by its name in the file: with it, sizes are checked along with the rest.
    """
    draft = read_job(path, workspace)
    sizes = sizes_of(draft.spec.model_set) if sizes_of else ()
    combinations = _combine(draft.spec, draft.spec.axes, sizes)
    if combinations.is_tangled():
        _raise_problems(draft.spec, [*draft.problems, f"exclude: {_TANGLED}"])
    problems = [*draft.problems, *_size_problems(draft.spec, combinations, sizes)]
    if draft.countable:
        problems += _count_problems(draft.spec, combinations)
    if draft.complete:
        problems += _include_problems(draft.spec, combinations)
    _raise_problems(draft.spec, problems)
    return draft.spec


def expand_job(
    spec: JobSpec, sizes: Sequence[Size], *, drawn: Sequence[int] = (), draw: Callable[[], int] | None = None
) -> Expansion:
    """Every image of the job for a model set of these sizes, the first one the default; raises JobError.

    `drawn` are the random seeds of earlier runs by position. Those that miss come from `draw` (see draw_seed); without
    it their images stay open: `JobImage.seed` is None.
    """
    seeds = _draw_missing(spec, drawn, draw)
    axes = tuple(_with_seeds(axis, seeds) for axis in spec.axes)
    combinations = _combine(spec, axes, sizes)
    if combinations.is_tangled():
        _raise_problems(spec, [f"exclude: {_TANGLED}"])
    problems = [problem for axis in axes for problem in find_repeats(axis, spec.policies)] if spec.draws else []
    problems += _size_problems(spec, combinations, sizes)
    problems += _count_problems(spec, combinations)
    problems += _include_problems(spec, combinations)
    _raise_problems(spec, problems)
    unmet = combinations.unmet(len(spec.excludes))
    warnings = tuple(f"{spec.path}: exclude[{index}]: matches no combination of [matrix]" for index in unmet)
    images = [*_matrix_images(spec, combinations), *_include_images(spec, combinations)]
    return Expansion(tuple(images), warnings, seeds)


def draw_seed() -> int:
    """A new random seed, 0 to 2**32 - 1."""
    return secrets.randbelow(2**32)


def _raise_problems(spec: JobSpec, problems: Sequence[str]) -> None:
    if problems:
        raise JobError([f"{spec.path}: {problem}" for problem in problems])


def _combine(spec: JobSpec, axes: Sequence[Axis], sizes: Sequence[Size]) -> Combinations:
    size = {"width": sizes[0][0], "height": sizes[0][1]} if sizes else {}
    return combine(axes, {**size, **spec.defaults}, spec.excludes)


def _has_combinations(spec: JobSpec) -> bool:
    """Without [matrix] the defaults are one image, unless [[include]] says which images there are."""
    return bool(spec.axes) or not spec.includes


def _draw_missing(spec: JobSpec, drawn: Sequence[int], draw: Callable[[], int] | None) -> tuple[int, ...]:
    seeds = list(drawn)
    if len(seeds) >= spec.draws:
        return tuple(seeds)
    taken = {*seeds, *(value.fields.get("seed") for axis in spec.axes for value in axis.values)}
    while draw is not None and len(seeds) < spec.draws:
        # A seed that is there already would make the same image twice; 100 in a row are no accident.
        seed = next((new for _ in range(100) if (new := draw()) not in taken), None)
        if seed is None:
            raise JobError([f"{spec.path}: matrix.seed: 100 random seeds in a row were drawn before: run it again"])
        seeds.append(seed)
        taken.add(seed)
    return tuple(seeds)


def _with_seeds(axis: Axis, seeds: Sequence[int]) -> Axis:
    if "seed" not in axis.names or not seeds:
        return axis
    values = []
    for value in axis.values:
        seed = value.fields["seed"]
        known = isinstance(seed, Draw) and seed.position < len(seeds)
        values.append(AxisValue({**value.fields, "seed": seeds[seed.position]}, value.origin) if known else value)
    return replace(axis, values=tuple(values))


def _count_problems(spec: JobSpec, combinations: Combinations) -> list[str]:
    known = {*combinations.base, *(name for axis in spec.axes for name in axis.values[0].fields)}
    if any(name not in known for exclude in spec.excludes for name in exclude):
        return []  # an exclude by a width or height that the model set will give
    count = (combinations.count() if _has_combinations(spec) else 0) + len(spec.includes)
    if count > spec.max_images:
        return [f"max_images: must be at least the {count} images asked for, got {spec.max_images}: ask for fewer"]
    if count == 0:
        return ["exclude: must leave at least one image, got 0: every combination of [matrix] is excluded"]
    return []


def _include_problems(spec: JobSpec, combinations: Combinations) -> list[str]:
    """A problem for each [[include]] that is the same image as a combination or an earlier [[include]]."""
    problems = []
    seen: dict[object, int] = {}
    lookups = [_positions(axis, spec) for axis in combinations.axes] if spec.includes else []
    for index, include in enumerate(spec.includes):
        fields = {name: request_value(name, value, spec.policies) for name, value in combinations.base.items()}
        fields |= {name: request_value(name, value, spec.policies) for name, value in include.items()}
        key = tuple(sorted(fields.items(), key=lambda item: item[0]))
        if (first := seen.setdefault(key, index)) != index:
            problems.append(f"include[{index}]: must differ from include[{first}], or two images are the same")
        elif _has_combinations(spec) and _is_combination(fields, spec, combinations, lookups):
            problems.append(
                f"include[{index}]: must differ from every combination of [matrix], or two images are the same"
            )
    return problems


def _positions(axis: Axis, spec: JobSpec) -> dict[tuple[Any, ...], int]:
    """Where on the axis the values of its fields, in the order of their names, are found."""
    names = sorted(axis.values[0].fields)
    return {
        tuple(request_value(name, value.fields[name], spec.policies) for name in names): position
        for position, value in enumerate(axis.values)
    }


def _is_combination(
    fields: dict[str, Any], spec: JobSpec, combinations: Combinations, lookups: list[dict[tuple[Any, ...], int]]
) -> bool:
    met, rest = combinations.reachable, dict(fields)
    for axis, masks, lookup in zip(combinations.axes, combinations.masks, lookups, strict=True):
        position = lookup.get(tuple(rest.pop(name, None) for name in sorted(axis.values[0].fields)))
        if position is None:
            return False
        met &= masks[position]
    # A width that only the model set could tell to be the default one is in `rest`, but not in the base.
    base = combinations.base
    same = all(name in base and value == request_value(name, base[name], spec.policies) for name, value in rest.items())
    return same and not met


def _size_problems(spec: JobSpec, combinations: Combinations, sizes: Sequence[Size]) -> list[str]:
    """A problem for each size asked for that the model set does not have; none where its sizes are not known."""
    if not sizes:
        return []
    problems = list(_matrix_size_problems(combinations, sizes)) if _has_combinations(spec) else []
    for index, include in enumerate(spec.includes):
        fields = {**combinations.base, **include}
        size = (fields["width"], fields["height"])
        given = [name for name in ("width", "height") if name in include]
        if size not in sizes:
            path = f"include[{index}]" + (f".{given[0]}" if len(given) == 1 else "")
            problems.append(f"{path}: {_not_a_size(size, sizes)}")
    return problems


def _not_a_size(size: Size, sizes: Sequence[Size]) -> str:
    allowed = ", ".join(f"{width}x{height}" for width, height in sizes)
    return f"must be a size of the model set ({allowed}), got {size[0]}x{size[1]}"


def _matrix_size_problems(combinations: Combinations, sizes: Sequence[Size]) -> Iterator[str]:
    known: dict[str, list[int]] = {}
    for position, name in enumerate(("width", "height")):
        allowed = sorted({size[position] for size in sizes})
        known[name] = []
        for value, origin in _values_of(name, combinations).items():
            if value in allowed:
                known[name].append(value)
            elif _is_asked_for({name: value}, combinations):
                words = ", ".join(map(str, allowed))
                yield f"{origin}: must be a {name} of the model set ({words}), got {value}"
    for size in ((width, height) for width in known["width"] for height in known["height"]):
        fields = {"width": size[0], "height": size[1]}
        if size not in sizes and _is_asked_for(fields, combinations):
            is_axis = any({"width", "height"} & set(axis.names) for axis in combinations.axes)
            remedy = exclude_text(fields).replace("\n", " ")
            advice = f"; leave it out with: {remedy}" if is_axis else ""
            yield f"{'matrix' if is_axis else 'defaults'}: {_not_a_size(size, sizes)}{advice}"


def _values_of(name: str, combinations: Combinations) -> dict[int, str]:
    """Every value of the field in the matrix, each with the key path where it stands first."""
    found: dict[int, str] = {}
    for axis in combinations.axes:
        if name in axis.names:
            for index, value in enumerate(axis.values):
                # Two sizes in a row are never a range, since they step by 16: the position is the list's index.
                origin = value.origin if len(axis.names) == 1 else key_path("matrix", name, index)
                found.setdefault(value.fields[name], origin)
    return found or {combinations.base[name]: f"defaults.{name}"}


def _is_asked_for(fields: dict[str, int], combinations: Combinations) -> bool:
    def accepts(value: AxisValue) -> bool:
        return all(value.fields.get(name, wanted) == wanted for name, wanted in fields.items())

    return combinations.matching(accepts).count() > 0


def _image_fields(fields: Mapping[str, Any], spec: JobSpec) -> Mapping[str, Any]:
    """The fields as the request holds them, with the names and the open draw beside them where they have one."""
    seed = fields.get("seed")
    if not isinstance(seed, Draw) and "prompt" not in fields and "policy" not in fields:
        return fields
    ready = {name: request_value(name, value, spec.policies) for name, value in fields.items()}
    if "prompt" in fields:
        ready["prompt_name"] = fields["prompt"].name
    if "policy" in fields:
        ready["policy_name"] = fields["policy"]
    if isinstance(seed, Draw):
        ready |= {"open_draw": seed.position, "seed": 0}
    return ready


def _image_axis(axis: Axis, spec: JobSpec) -> Axis:
    if {"prompt", "policy", "preset", "seed"}.isdisjoint(axis.names):
        return axis
    ready = (_image_fields(value.fields, spec) for value in axis.values)
    # Values that stay as they are stay the same objects: a hundred thousand seeds are not copied.
    pairs = zip(axis.values, ready, strict=True)
    return replace(
        axis, values=tuple([old if old.fields is fields else AxisValue(fields, old.origin) for old, fields in pairs])
    )


def _matrix_images(spec: JobSpec, combinations: Combinations) -> Iterator[JobImage]:
    if not _has_combinations(spec):
        return
    axes = tuple(_image_axis(axis, spec) for axis in combinations.axes)
    base = {"open_draw": None, **_image_fields(combinations.base, spec)}
    for fields in replace(combinations, axes=axes, base=base).product():
        yield JobImage(build_request(fields), fields["prompt_name"], fields["policy_name"], fields["open_draw"])


def _include_images(spec: JobSpec, combinations: Combinations) -> Iterator[JobImage]:
    for index, include in enumerate(spec.includes):
        fields = _image_fields({**combinations.base, **include}, spec)
        yield JobImage(build_request(fields), fields["prompt_name"], fields["policy_name"], include=index)
