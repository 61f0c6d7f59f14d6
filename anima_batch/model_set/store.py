"""A model set on disk: reading and writing its description, and comparing its files with it."""

from __future__ import annotations

import functools
import json
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from anima_batch.errors import ModelSetError, ModelSetNotFoundError
from anima_batch.files import canonical_json, file_digests, read_json, sha256_bytes, write_atomic
from anima_batch.model_set.description import RULE_BROKEN, SCHEMA_VERSION, Component, ModelSetFile, TensorShape
from anima_batch.paths import PATH_REFUSED

FILE_NAME = "model_set.json"
DESCRIPTION_BYTES = 2 << 20  # ten times what the largest model of this kind needs; each manifest repeats it


@dataclass(frozen=True)
class ModelSet:
    """A folder and its description."""

    folder: Path
    description: ModelSetFile

    @property
    def name(self) -> str:
        """The name in `model_set.json`; the folder may be called otherwise."""
        return self.description.name

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over all that acts on a picture: configuration and each component's content, not names or sizes."""
        return _digest(self.description)

    @functools.cached_property
    def _components(self) -> dict[tuple[str, str], Component]:
        return {part.key: part for part in self.description.components}

    def component(self, role: str, suffix: str = ".onnx") -> Component:
        """What is known of a component; raises ModelSetError when the set has none of that kind."""
        try:
            return self._components[role, suffix]
        except KeyError:
            raise ModelSetError(
                f"{self.folder / FILE_NAME}: no {suffix} component of role {role}: convert it first"
            ) from None

    def path(self, role: str, suffix: str = ".onnx") -> Path:
        """Where the component lies; raises ModelSetError when the set has none of that kind."""
        return self.folder / self.component(role, suffix).path

    def has(self, suffix: str) -> bool:
        """Whether any component is of that kind (".rknn": the set was built for the NPU)."""
        return any(kind == suffix for _, kind in self._components)

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
    return sorted((*part.key, part.sha256) for part in components)


def load_model_set(folder: Path) -> ModelSet:
    """The model set of a folder; raises ModelSetNotFoundError or ModelSetError. Digests are not checked here."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise ModelSetNotFoundError(
            f"{folder}: no model set there ({FILE_NAME} is missing): see `anima-batch models list`"
        )
    content = read_json(path, what="the model set", error=ModelSetError, limit_bytes=DESCRIPTION_BYTES)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise ModelSetError(
            f"{path}: schema_version: must be {SCHEMA_VERSION}, got {version!r}: use the anima-batch that wrote it"
        )
    try:
        return ModelSet(folder, ModelSetFile.model_validate(content))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        raise ModelSetError(f"{path}: {where}: {fault['msg']}{_got(fault)}: convert the model set again") from error


def _got(fault: Mapping[str, Any]) -> str:
    """What a message of pydantic leaves out, where it is a plain value; rules of our own say it."""
    plain = isinstance(fault["input"], str | int | float)
    return f", got {fault['input']!r:.60}" if plain and fault["type"] not in (RULE_BROKEN, PATH_REFUSED) else ""


def verify_model_set(model_set: ModelSet, *, sha256: bool = False) -> list[str]:
    """One line for each file that is missing or not as described; every byte is read (by XXH3, or by SHA-256 too)."""
    found = (
        _check_file(model_set.folder / part.path, part, sha256=sha256) for part in model_set.description.components
    )
    return [problem for problem in found if problem is not None]


def _check_file(path: Path, part: Component, *, sha256: bool) -> str | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a device or a pipe would never end
            return f"{path}: {part.role}: must be a regular file"
        if status.st_size != part.bytes:  # said at once: a file may be far larger than any model
            return f"{path}: {part.role}: bytes must be {part.bytes}, got {status.st_size}"
        secure, fast = file_digests(path, sha256=sha256)
    except OSError as error:
        return f"{path}: {part.role}: {error.strerror}"
    if fast != part.xxh3_128:
        return f"{path}: {part.role}: xxh3_128 must be {part.xxh3_128}, got {fast}"
    if sha256 and secure != part.sha256:
        return f"{path}: {part.role}: sha256 must be {part.sha256}, got {secure}"
    return None


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
