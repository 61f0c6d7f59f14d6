"""A model set: a folder of artefacts, with what each is, how it was built and its digests in `model_set.json`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anima_batch.errors import ModelSetError, ModelSetNotFoundError
from anima_batch.files import canonical_json, file_digests, read_json, sha256_bytes, write_atomic

FILE_NAME = "model_set.json"
SCHEMA_VERSION = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TransformerConfig(_Frozen):
    """Dimensions of the diffusion transformer, read from its tensors."""

    blocks: int
    hidden: int
    head_dim: int
    context_dim: int
    latent_channels: int


class TextConfig(_Frozen):
    """Dimensions of Qwen3 and the adapter, and what tensors cannot say of the text path."""

    context_rows: int
    empty_prompt: Literal["token", "masked"]
    empty_token_id: int
    head_dim: int
    rope_theta: float
    adapter_head_dim: int
    adapter_rope_theta: float


class VaeConfig(_Frozen):
    """Latent statistics, one of each a channel, and the tile in latent pixels (null: the picture is decoded whole)."""

    latent_mean: tuple[float, ...]
    latent_std: tuple[float, ...]
    tile: int | None = None


class TensorShape(_Frozen):
    """An input or output of a graph; a dimension is a number, or the name of a symbolic one."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Source(_Frozen):
    """A file of weights that the set was made from."""

    role: str
    file: str
    bytes: int
    sha256: str


class Component(_Frozen):
    """A file of the set; `built_with` names the tools that wrote it, with their versions."""

    role: str
    path: str
    bytes: int
    sha256: str
    xxh3_128: str
    built_with: Mapping[str, str]
    inputs: tuple[TensorShape, ...] = ()
    outputs: tuple[TensorShape, ...] = ()


class ModelSetFile(_Frozen):
    """The content of `model_set.json`."""

    schema_version: Literal[1]
    name: str
    license: str
    sizes: tuple[tuple[int, int], ...] = Field(min_length=1)  # (width, height) in pixels, the default first
    transformer: TransformerConfig
    text: TextConfig
    vae: VaeConfig
    sources: tuple[Source, ...]
    components: tuple[Component, ...]


@dataclass(frozen=True)
class ModelSet:
    """A folder and its description."""

    folder: Path
    description: ModelSetFile

    @property
    def name(self) -> str:
        """The name in `model_set.json`; the folder may be called otherwise."""
        return self.description.name

    @property
    def digest(self) -> str:
        """SHA-256 over all that acts on a picture: configuration and each component's content, not names or sizes."""
        return _digest(self.description)

    @functools.cached_property
    def _paths(self) -> dict[tuple[str, str], Path]:
        return {(part.role, Path(part.path).suffix): self.folder / part.path for part in self.description.components}

    def path(self, role: str, suffix: str = ".onnx") -> Path:
        """Where the component lies; raises ModelSetError when the set has none of that kind."""
        try:
            return self._paths[role, suffix]
        except KeyError:
            raise ModelSetError(
                f"{self.folder / FILE_NAME}: no {suffix} component of role {role}: convert it first"
            ) from None

    def has(self, suffix: str) -> bool:
        """Whether any component is of that kind (".rknn": the set was built for the NPU)."""
        return any(kind == suffix for _, kind in self._paths)

    def source_sha256(self, role: str) -> str | None:
        """The digest of the weights file that a role was made from: what model sites know an image's model by."""
        return next((source.sha256 for source in self.description.sources if source.role == role), None)

    def part_digest(self, *prefixes: str) -> str:
        """One digest over the components whose role starts with a prefix: what an intermediate result depends on."""
        parts = [part for part in self.description.components if part.role.startswith(prefixes)]
        return sha256_bytes(canonical_json(_contents(parts)).encode())


def _digest(description: ModelSetFile) -> str:
    content = {
        "transformer": description.transformer.model_dump(),
        "text": description.text.model_dump(),
        "vae": description.vae.model_dump(),
        "components": _contents(description.components),
    }
    return sha256_bytes(canonical_json(content).encode())


def _contents(components: Iterable[Component]) -> list[tuple[str, str, str]]:
    return sorted((part.role, Path(part.path).suffix, part.sha256) for part in components)


def load_model_set(folder: Path) -> ModelSet:
    """The model set of a folder; raises ModelSetNotFoundError or ModelSetError. Digests are not checked here."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise ModelSetNotFoundError(
            f"{folder}: no model set there ({FILE_NAME} is missing): see `anima-batch models list`"
        )
    content = read_json(path, what="the model set", error=ModelSetError)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise ModelSetError(
            f"{path}: schema_version: must be {SCHEMA_VERSION}, got {version!r}: use the anima-batch that wrote it"
        )
    try:
        description = ModelSetFile.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ModelSetError(f"{path}: {where}: {fault['msg']}: convert the model set again") from error
    _check_components(path, description.components)
    return ModelSet(folder, description)


def _check_components(path: Path, components: Sequence[Component]) -> None:
    seen = set()
    for index, part in enumerate(components):
        inside = Path(part.path)
        if inside.is_absolute() or ".." in inside.parts:
            raise ModelSetError(
                f"{path}: components.{index}.path: must be below the folder, got {part.path!r}: "
                "convert the model set again"
            )
        if (part.role, inside.suffix) in seen:
            raise ModelSetError(
                f"{path}: components.{index}.role: must be there once as {inside.suffix}, "
                f"got {part.role} again: convert the model set again"
            )
        seen.add((part.role, inside.suffix))


def built_in_folder() -> Path:
    """Where the model sets that ship with the package lie."""
    return Path(__file__).parent / "models"


def list_model_sets(workspace: Path) -> Iterator[ModelSet]:
    """The sets of the workspace's `models/`, then the built-in ones, each by name."""
    for folder in _set_folders(workspace):
        yield load_model_set(folder)


def _set_folders(workspace: Path) -> Iterator[Path]:
    for parent in (workspace / "models", built_in_folder()):
        yield from (path.parent for path in sorted(parent.glob(f"*/{FILE_NAME}")))


def find_model_set(name: str, workspace: Path) -> ModelSet:
    """A set by its folder's name in `models/`, then a built-in one, then by path; raises ModelSetNotFoundError."""
    for folder in (workspace / "models" / name, built_in_folder() / name, workspace / name):
        if (folder / FILE_NAME).is_file():
            return load_model_set(folder)
    known = sorted({folder.name for folder in _set_folders(workspace)})
    raise ModelSetNotFoundError(
        f"model_set: must be one of {', '.join(known)} or a folder with {FILE_NAME}, got {name!r} "
        f"(looked in {workspace / 'models'}, then among the built-in ones)"
    )


def find_by_digest(digest: str, workspace: Path) -> ModelSet | None:
    """The set with that digest, whatever its folder is called."""
    return next((model_set for model_set in list_model_sets(workspace) if model_set.digest == digest), None)


def verify_model_set(model_set: ModelSet, *, sha256: bool = False) -> list[str]:
    """One line for each file that is missing or not as described; every byte is read (by XXH3, or by SHA-256 too)."""
    return check_components(model_set.folder, model_set.description.components, sha256=sha256)


class RecordedComponent(Protocol):
    """What a description or a manifest says of a file of a set."""

    role: str
    path: str
    sha256: str
    xxh3_128: str


def check_components(folder: Path, parts: Iterable[RecordedComponent], *, sha256: bool = False) -> list[str]:
    """One line for each file below the folder that is missing or has other digests than recorded."""
    problems = []
    for part in parts:
        path = folder / part.path
        try:
            secure, fast = file_digests(path, sha256=sha256)
        except OSError as error:
            problems.append(f"{path}: {part.role}: {error.strerror}")
            continue
        if fast != part.xxh3_128:
            problems.append(f"{path}: {part.role}: xxh3_128 must be {part.xxh3_128}, got {fast}")
        elif sha256 and secure != part.sha256:
            problems.append(f"{path}: {part.role}: sha256 must be {part.sha256}, got {secure}")
    return problems


def describe_component(
    folder: Path,
    role: str,
    path: str,
    built_with: Mapping[str, str],
    inputs: tuple[TensorShape, ...] = (),
    outputs: tuple[TensorShape, ...] = (),
) -> Component:
    """The component for a file already written below the folder, digests computed from its bytes."""
    secure, fast = file_digests(folder / path)
    size = (folder / path).stat().st_size
    return Component(
        role=role,
        path=path,
        bytes=size,
        sha256=secure,
        xxh3_128=fast,
        built_with=built_with,
        inputs=inputs,
        outputs=outputs,
    )


def write_description(folder: Path, description: ModelSetFile) -> ModelSet:
    """Write `model_set.json`."""
    text = json.dumps(description.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"
    write_atomic(folder / FILE_NAME, text.encode())
    return ModelSet(folder, description)


def seal_model_set(model_set: ModelSet) -> ModelSet:
    """Record the digests that the files have now, after they were changed on purpose; `built_with` says so.

    Raises ModelSetError for a file that cannot be read.
    """
    components = []
    for part in model_set.description.components:
        try:
            now = describe_component(model_set.folder, part.role, part.path, part.built_with, part.inputs, part.outputs)
        except OSError as error:
            raise ModelSetError(
                f"{model_set.folder / part.path}: {part.role}: {error.strerror}: restore it, then seal again"
            ) from error
        changed = now.sha256 != part.sha256
        sealed = {**part.built_with, "sealed_over": part.sha256} if changed else part.built_with
        components.append(now.model_copy(update={"built_with": sealed}))
    return write_description(
        model_set.folder, model_set.description.model_copy(update={"components": tuple(components)})
    )
