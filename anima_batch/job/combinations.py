"""The combinations of a matrix, counted and looked up without listing them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anima_batch.job.axes import Axis, AxisValue

Masks = tuple[tuple[int, ...], ...]

_SETS_MAX = 300_000  # more than a job may have images, and a second at the most


@dataclass(frozen=True, slots=True)
class Combinations:
    """A matrix on top of its base fields. Bit e of `masks[axis][value]` is set where that value can meet exclude e.

    A combination is dropped where one bit is set in the masks of all its values and in `reachable`, the excludes that
    the base fields can meet.
    """

    axes: tuple[Axis, ...]
    base: Mapping[str, Any]
    masks: Masks
    reachable: int

    def matching(self, accepts: Callable[[AxisValue], bool]) -> Combinations:
        """Only the combinations whose values are all accepted."""
        axes, masks = [], []
        for axis, axis_masks in zip(self.axes, self.masks, strict=True):
            kept = [(value, mask) for value, mask in zip(axis.values, axis_masks, strict=True) if accepts(value)]
            axes.append(Axis(axis.names, tuple(value for value, _ in kept)))
            masks.append(tuple(mask for _, mask in kept))
        return Combinations(tuple(axes), self.base, tuple(masks), self.reachable)

    def count(self) -> int:
        """The exact number of combinations that no exclude drops.

        Axis by axis, combinations are told apart only by the set of excludes that they can still meet: the sets are
        few, since one value of an axis meets few excludes, whatever the number of combinations.
        """
        alive = {self.reachable: 1}
        for axis_masks in self.masks:
            following: dict[int, int] = {}
            sizes: dict[int, int] = {}
            for mask in axis_masks:
                sizes[mask] = sizes.get(mask, 0) + 1
            for met, number in alive.items():
                for mask, size in sizes.items():
                    following[met & mask] = following.get(met & mask, 0) + number * size
            alive = following
        return alive.get(0, 0)

    def is_tangled(self) -> bool:
        """Whether counting would take too long: with thousands of excludes there may be a set for each combination."""
        alive = {self.reachable}
        for axis_masks in self.masks:
            masks = set(axis_masks)
            if len(alive) * len(masks) > _SETS_MAX:
                return True
            alive = {met & mask for met in alive for mask in masks}
        return False

    def unmet(self, excludes: int) -> list[int]:
        """The indices of the excludes that match no combination, of the first `excludes`."""
        met = self.reachable
        for axis_masks in self.masks:
            met &= functools.reduce(operator.or_, axis_masks)
        return [index for index in range(excludes) if not met >> index & 1]

    def product(self) -> Iterator[dict[str, Any]]:
        """The fields of each combination that is not dropped, in file order, the last axis fastest."""
        yield from self._walk(0, dict(self.base), self.reachable)

    def _walk(self, depth: int, fields: dict[str, Any], met: int) -> Iterator[dict[str, Any]]:
        if depth == len(self.axes):
            if not met:
                yield fields
            return
        last = depth == len(self.axes) - 1
        for value, mask in zip(self.axes[depth].values, self.masks[depth], strict=True):
            if not last:
                yield from self._walk(depth + 1, {**fields, **value.fields}, met & mask)
            elif not met & mask:
                yield {**fields, **value.fields}


def combine(axes: Sequence[Axis], base: Mapping[str, Any], excludes: Sequence[Mapping[str, Any]]) -> Combinations:
    """The combinations of the axes on top of the base fields, less those that an exclude matches."""
    axis_fields = {name for axis in axes for value in axis.values[:1] for name in value.fields}
    reachable = 0
    for index, exclude in enumerate(excludes):
        constant = [name for name in exclude if name not in axis_fields]
        if all(name in base and matches(name, base[name], exclude[name]) for name in constant):
            reachable |= 1 << index
    masks = tuple(_axis_masks(axis, excludes) for axis in axes)
    return Combinations(tuple(axes), base, masks, reachable)


def matches(name: str, value: Any, wanted: Any) -> bool:  # noqa: ANN401 - any field
    """Whether a field is what an exclude names; a prompt is named by its name or its text."""
    return wanted in _names_of(name, value)


def _names_of(name: str, value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any field
    return (value.name, value.text) if name == "prompt" else (value,)


def _axis_masks(axis: Axis, excludes: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The excludes that each value can meet: for all its fields those that name the field's value or not the field."""
    masks = [(1 << len(excludes)) - 1] * len(axis.values)
    for name in axis.values[0].fields:
        naming: dict[Any, int] = {}
        for index, exclude in enumerate(excludes):
            if name in exclude:
                naming[exclude[name]] = naming.get(exclude[name], 0) | 1 << index
        if naming:
            silent = sum(1 << index for index, exclude in enumerate(excludes) if name not in exclude)
            for position, value in enumerate(axis.values):
                named = sum(naming.get(wanted, 0) for wanted in {*_names_of(name, value.fields[name])})
                masks[position] &= silent | named if named else silent
    return tuple(masks)
