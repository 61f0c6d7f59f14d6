"""Official safetensors files, read one tensor at a time and checked to hold exactly what is expected."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from anima_batch.convert.graph import Array
from anima_batch.convert.layouts import Shape
from anima_batch.errors import UsageError

DtypeRule = Literal["auto", "fp16", "fp32"]

FLOAT16_MAX = 65504.0
LISTED_NAMES = 20  # of each kind of fault; a wrong file has hundreds
_BLOCK_VALUES = 1 << 22  # converted at a time, so that no second copy of an embedding table is needed


@dataclass(frozen=True)
class Kind:
    """What a file is recognised by: prefixes that publishers put before the names, tried in order, and one tensor.

    Names that match `ignored` (without the prefix) are left out: buffers, and parts that are not needed.
    """

    title: str
    prefixes: tuple[str, ...]
    anchor: str
    ignored: str


TRANSFORMER = Kind(
    title="an Anima transformer",
    prefixes=("model.diffusion_model.net.", "model.diffusion_model.", "net.", ""),
    anchor="blocks.0.mlp.layer1.weight",
    ignored=r"pos_embedder\..*|accum_.*|(.*\.)?_extra_state",
)
QWEN = Kind(
    title="a Qwen3 text encoder", prefixes=("model.", ""), anchor="embed_tokens.weight", ignored=r"(.*\.)?_extra_state"
)
VAE = Kind(
    title="a Qwen-Image autoencoder in Wan naming",
    prefixes=("",),
    anchor="decoder.conv1.weight",
    ignored=r"encoder\..*|conv1\..*|(.*\.)?_extra_state",
)


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: bytes from the file's start; name and dtype as the file spells them."""

    name: str
    dtype: str
    shape: Shape
    offset: int


@dataclass(frozen=True)
class Source:
    """A file's tensors by their names without the prefix, nothing but the header being read yet.

    A tensor without the others' prefix goes by `/` and its name, so that it is never taken for one with it.
    """

    path: Path
    prefix: str
    entries: Mapping[str, Entry]

    @property
    def shapes(self) -> dict[str, Shape]:
        """All tensors' shapes by name."""
        return {name: entry.shape for name, entry in self.entries.items()}


@dataclass(frozen=True)
class Tensors(Mapping[str, Array]):
    """The tensors of a source by name; each look-up reads the file.

    Values are float16 or float32, by the rule: `auto` keeps float32 and makes float16 of bfloat16. A look-up raises
    UsageError for values that are not finite or do not fit.
    """

    source: Source
    rule: DtypeRule

    def __getitem__(self, name: str) -> Array:
        return read_tensor(self.source, name, self.rule)

    def __contains__(self, name: object) -> bool:
        return name in self.source.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.entries)

    def __len__(self) -> int:
        return len(self.source.entries)


def open_source(path: Path, kind: Kind) -> Source:
    """The header of a file of that kind; raises UsageError for one that is damaged or is something else."""
    entries = read_header(path)
    for prefix in kind.prefixes:
        if prefix + kind.anchor in entries:
            break
    else:
        tried = " or ".join(repr(prefix) for prefix in kind.prefixes)
        found = ", ".join(sorted(entries)[:3]) or "no tensors at all"
        raise UsageError(f"{path}: not {kind.title}: no tensor {kind.anchor} after the prefix {tried}, but {found}")
    named = {name[len(prefix) :] if name.startswith(prefix) else f"/{name}": entry for name, entry in entries.items()}
    kept = {name: entry for name, entry in named.items() if not re.fullmatch(kind.ignored, name.lstrip("/"))}
    return Source(path, prefix, kept)


def select(source: Source, part: str) -> Source:
    """The tensors whose names start with `part`, by the rest of the name."""
    entries = {name[len(part) :]: entry for name, entry in source.entries.items() if name.startswith(part)}
    return replace(source, prefix=source.prefix + part, entries=entries)


def leave_out(source: Source, pattern: str) -> Source:
    """All tensors but those whose names begin with a match of the regular expression."""
    return replace(source, entries={name: e for name, e in source.entries.items() if not re.match(pattern, name)})


def find_faults(source: Source, expected: Mapping[str, Shape]) -> list[str]:
    """One line for each kind of fault: missing, unknown and misshapen tensors, by their names in the file.

    Shapes are compared only when no tensor is missing: the expected ones are derived from some of them.
    """
    entries = source.entries
    missing = [source.prefix + name for name in sorted(expected.keys() - entries.keys())]
    unknown = [entries[name].name for name in sorted(entries.keys() - expected.keys())]
    misshapen = [
        f"{entries[name].name} (must be {list(shape)}, got {list(entries[name].shape)})"
        for name, shape in expected.items()
        if not missing and (shape != entries[name].shape or 0 in shape)
    ]
    lists = {"missing": missing, "unknown": unknown, "misshapen": misshapen}
    return [f"{source.path}: {len(names)} {what}: {_shorten(names)}" for what, names in lists.items() if names]


def _shorten(names: Sequence[str]) -> str:
    rest = len(names) - LISTED_NAMES
    return ", ".join(names[:LISTED_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def read_header(path: Path) -> dict[str, Entry]:
    """Every tensor of a safetensors file by name; raises UsageError when it is not one, or is cut short."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 0 < length <= size - 8:
                raise UsageError(f"{path}: not a safetensors file: {size} bytes hold no header")
            content = json.loads(stream.read(length))
        begin = 8 + length
        entries = {name: _read_entry(name, value, begin) for name, value in content.items() if name != "__metadata__"}
        end = max((begin + value["data_offsets"][1] for name, value in content.items() if name in entries), default=0)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: not a safetensors file: its header is damaged") from error
    if end > size:
        raise UsageError(f"{path}: cut short: must have {end} bytes, got {size}: download it again")
    return entries


def _read_entry(name: str, value: dict[str, Any], begin: int) -> Entry:
    shape = tuple(int(size) for size in value["shape"])
    start, end = value["data_offsets"]
    known = _dtypes().get(value["dtype"])
    if start < 0 or (known is not None and end - start != math.prod(shape) * known.itemsize):
        raise ValueError("offsets do not fit the shape")
    return Entry(name, str(value["dtype"]), shape, begin + start)


def _dtypes() -> dict[str, np.dtype[Any]]:
    return {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


def read_tensor(source: Source, name: str, rule: DtypeRule) -> Array:
    """One tensor as float16 or float32; raises UsageError naming it when it is neither finite nor within float16."""
    entry = source.entries[name]
    where = f"{source.path}: {entry.name}"
    if entry.dtype not in _dtypes():
        raise UsageError(f"{where}: dtype must be BF16, F16 or F32, got {entry.dtype}")
    half = rule == "fp16" or (rule == "auto" and entry.dtype != "F32")
    raw = np.memmap(source.path, _dtypes()[entry.dtype], mode="r", offset=entry.offset, shape=(math.prod(entry.shape),))
    values: npt.NDArray[Any] = np.empty(raw.shape, np.float16 if half else np.float32)
    for start in range(0, raw.size, _BLOCK_VALUES):
        block = raw[start : start + _BLOCK_VALUES].astype(np.float32)
        _check_values(block, where, half=half)
        values[start : start + _BLOCK_VALUES] = block
    return values.reshape(entry.shape)


def _check_values(block: npt.NDArray[np.float32], where: str, *, half: bool) -> None:
    largest = float(np.abs(block).max())
    if not math.isfinite(largest):
        raise UsageError(f"{where}: holds NaN or infinite values: the file is damaged, download it again")
    if half and largest > FLOAT16_MAX:
        raise UsageError(
            f"{where}: must be within ±{FLOAT16_MAX:g} for float16, got {largest:g}: convert with dtype fp32"
        )
