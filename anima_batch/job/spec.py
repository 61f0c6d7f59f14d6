"""The job file: read, checked as a whole, and turned into what its expansion needs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import tomli
from pydantic import BaseModel, ConfigDict, Field, Strict

from anima_batch.errors import JobError
from anima_batch.files import read_bounded, sha256_bytes
from anima_batch.job.axes import Axis, MatrixReader
from anima_batch.job.fields import ExcludeTable, FieldTable, built_in_policies, check_fields
from anima_batch.job.problem import bad_keys, check_table, key_path, not_one_of, render_value
from anima_batch.job.request import FullPolicy, GuidanceReusePolicy, Policy, SpectrumPolicy, Text

Size: TypeAlias = tuple[int, int]  # width, height in pixels

_FOLDER_NAME = "a folder name: letters, digits, spaces and . _ - +, not starting with . or -, at most 100 bytes"
JOB_BYTES = 8 << 20  # longer lists of prompts have files of their own
MAX_IMAGES = 10_000  # of a job that does not say max_images
POLICY_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_TABLE = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())  # model_set is no method of pydantic


class RunSpec(BaseModel):
    """How the images are made, not what they are; `pinned` counts sessions, 0 `threads` are all.

    `keep_latents`: those after each step stay on disk, for `compare`.

    `ahead_mib`: of files of graphs that staging "ahead" opens before they are needed; one may be larger. With less
    memory available than `min_available_mib`, or more growth of swap than `max_swap_growth_mib`, it is on demand.
    `recycle`: images that one worker process makes before a fresh one takes over, 0: any number. `deadline_seconds`:
    what any answer of the worker may take at the least before it is taken for hung.
    """

    model_config = _TABLE
    staging: Literal["auto", "on-demand", "ahead", "pinned", "resident"] = "auto"
    pinned: Annotated[int, Strict(), Field(ge=0, le=10000, description="0-10000")] = 16
    ahead_mib: Annotated[int, Strict(), Field(ge=1, le=1 << 20, description="1-1048576 MiB")] = 128
    min_available_mib: Annotated[int, Strict(), Field(ge=0, le=1 << 20, description="0-1048576 MiB")] = 1536
    max_swap_growth_mib: Annotated[int, Strict(), Field(ge=0, le=1 << 20, description="0-1048576 MiB")] = 16
    interleave: Annotated[bool, Strict()] = True
    core_mask: Literal["0", "1", "2", "0+1"] = "0"
    threads: Annotated[int, Strict(), Field(ge=0, le=1024, description="0-1024")] = 0
    recycle: Annotated[int, Strict(), Field(ge=0, le=10000, description="0-10000")] = 8
    keep_latents: Annotated[bool, Strict()] = False
    deadline_seconds: Annotated[
        float, Strict(), Field(ge=1, le=86400, allow_inf_nan=False, description="1-86400 seconds")
    ] = 30.0


class JobFile(BaseModel):
    """The file's top level; [matrix], [[exclude]], [[include]] and [policy] are checked key by key afterwards."""

    model_config = _TABLE
    schema_version: Annotated[int, Strict(), Field(ge=1, le=1, description="1, the only version there is")]
    name: Text | None = Field(default=None, description=_FOLDER_NAME)
    model_set: Text = Field(default="picture-book", min_length=1, description="a name or a path")
    backend: Literal["auto", "onnx", "rknn"] = "auto"
    max_images: Annotated[int, Strict(), Field(ge=1, le=100_000, description="1-100000")] = MAX_IMAGES
    run: RunSpec = RunSpec()
    defaults: dict[str, Any] = Field(default_factory=dict, description="a table")
    matrix: dict[str, Any] = Field(default_factory=dict, description="a table")
    exclude: list[dict[str, Any]] = Field(default_factory=list, max_length=10_000, description="[[exclude]] tables")
    include: list[dict[str, Any]] = Field(default_factory=list, max_length=100_000, description="[[include]] tables")
    policy: dict[str, dict[str, Any]] = Field(
        default_factory=dict, max_length=1000, description="[policy.<name>] tables"
    )


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job file without a fault; `digest` is the SHA-256 of its bytes.

    `defaults` has every field, but prompt, seed, width and height only where given. Fields hold a Prompt for `prompt`,
    a policy's name for `policy`, a Draw for a random seed. `draws` counts the random seeds.
    """

    path: Path
    digest: str
    name: str
    model_set: str
    backend: Literal["auto", "onnx", "rknn"]
    max_images: int
    run: RunSpec
    policies: Mapping[str, Policy]
    defaults: Mapping[str, Any]
    axes: tuple[Axis, ...]
    excludes: tuple[Mapping[str, Any], ...]
    includes: tuple[Mapping[str, Any], ...]
    draws: int


@dataclass(frozen=True, slots=True)
class JobDraft:
    """What could be read of a job file and all its problems.

    `countable`: in spite of them the combinations are known; `complete`: so is every field of every image.
    """

    spec: JobSpec
    problems: tuple[str, ...]
    countable: bool
    complete: bool


def read_job(path: Path, workspace: Path) -> JobDraft:
    """The job file as far as it can be understood; raises JobError only where it is no TOML at all."""
    data, raw = _read_toml(path)
    file, problems = _check_file(raw)
    name = file.name if file.name is not None else path.stem
    problems += _name_problems(name, given=file.name is not None)
    policies, policy_problems = _read_policies(file)
    names = list(policies)
    given, default_problems = check_fields(FieldTable, file.defaults, ("defaults",), names)
    reader = MatrixReader(workspace, policies, file.max_images)
    axes = reader.read(file.matrix)
    excludes, exclude_problems = _read_tables(ExcludeTable, file.exclude, "exclude", names)
    includes, include_problems = _read_tables(FieldTable, file.include, "include", names)
    spec = JobSpec(
        path=path,
        digest=sha256_bytes(data),
        name=name,
        model_set=file.model_set,
        backend=file.backend,
        max_images=file.max_images,
        run=file.run,
        policies={key: policy for key, policy in policies.items() if policy is not None},
        defaults=_built_in_defaults() | given,
        axes=axes,
        excludes=excludes,
        includes=includes,
        draws=reader.draws,
    )
    loose = [*default_problems, *policy_problems]
    wrong = bad_keys(JobFile, raw)
    missing = [] if wrong & {"defaults", "matrix", "include"} else _missing_fields(file)
    found = [*loose, *reader.problems, *exclude_problems, *include_problems, *missing]
    # Without excludes the number of combinations does not hang on the defaults.
    countable = not reader.problems and not wrong & {"matrix", "exclude"} and not (file.exclude and found)
    complete = not found and not wrong & {"defaults", "matrix", "exclude", "include", "policy"}
    return JobDraft(spec, (*problems, *found), countable, complete)


def _read_toml(path: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        data = read_bounded(path, JOB_BYTES)
        return data, tomli.loads(data.decode("utf-8"))
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise JobError([f"{path}: must be a job file that can be read, got: {reason}"]) from error
    except UnicodeDecodeError as error:
        raise JobError([f"{path}: must be UTF-8, got byte {data[error.start]:#04x} at {error.start}"]) from error
    except (tomli.TOMLDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise JobError([f"{path}: must be valid TOML, got: {reason[:1].lower()}{reason[1:]}"]) from error
    except ValueError as error:  # an integer of thousands of digits, a date that no calendar has
        raise JobError([f"{path}: must be valid TOML, got a value that cannot be read: {error}"]) from error


def _check_file(raw: dict[str, Any]) -> tuple[JobFile, list[str]]:
    """The top level with its wrong keys at their defaults, and the problems."""
    file, problems = check_table(JobFile, raw, ())
    if file is None:
        wrong = bad_keys(JobFile, raw)
        sound = {key: value for key, value in raw.items() if key not in wrong}
        file = JobFile.model_validate(sound | {"schema_version": 1})
    return file, problems


def _name_problems(name: str, *, given: bool) -> list[str]:
    allowed = all(
        character.isalnum() or unicodedata.category(character)[0] == "M" or character in " ._-+" for character in name
    )
    if name and allowed and name[0] not in ".-" and name == name.strip() and len(name.encode("utf-8")) <= 100:
        return []
    source = "" if given else " from the file's name: give a name"
    return [f"name: must be {_FOLDER_NAME}, got {render_value(name)}{source}"]


def _read_policies(file: JobFile) -> tuple[dict[str, Policy | None], list[str]]:
    """The policies by name, None for one with a problem, which is known all the same."""
    policies: dict[str, Policy | None] = dict(built_in_policies())
    problems = []
    for name, table in file.policy.items():
        path = key_path("policy", name)
        if name in policies:
            problems.append(
                f"{path}: must not redefine a built-in policy, choose another name than {render_value(name)}"
            )
            continue
        if not POLICY_NAME.fullmatch(name):
            problems.append(f"{path}: must be named by 1-40 of a-z 0-9 _ -, got {render_value(name)}")
        policies[name], found = _read_policy(table, name)
        problems += found
    return policies, problems


def _read_policy(table: dict[str, Any], name: str) -> tuple[Policy | None, list[str]]:
    kinds: dict[str, type[FullPolicy | SpectrumPolicy | GuidanceReusePolicy]] = {
        "full": FullPolicy,
        "spectrum": SpectrumPolicy,
        "guidance_reuse": GuidanceReusePolicy,
    }
    kind = table.get("kind")
    path = key_path("policy", name, "kind")
    if kind is None:
        return None, [f"{path}: missing, must be one of {', '.join(map(render_value, kinds))}"]
    if not isinstance(kind, str) or kind not in kinds:
        return None, [f"{path}: {not_one_of(kind, kinds)}"]
    return check_table(kinds[kind], table, ("policy", name))


def _read_tables(
    model: type[FieldTable | ExcludeTable], tables: Sequence[dict[str, Any]], key: str, policy_names: Sequence[str]
) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    read, problems = [], []
    for index, table in enumerate(tables):
        values, found = check_fields(model, table, (key, index), policy_names)
        if not table:
            found = [f"{key_path(key, index)}: must give at least one key, got an empty table"]
        read.append(values)
        problems += found
    return tuple(read), problems


def _missing_fields(file: JobFile) -> list[str]:
    """A problem for each image or matrix to which nobody gives a prompt or a seed."""
    problems = []
    for name in ("prompt", "seed"):
        if name in file.defaults:
            continue
        if (file.matrix or not file.include) and name not in file.matrix:
            problems.append(f"matrix.{name}: missing, must be given in [matrix] or [defaults]: {name} has no default")
        for index, table in enumerate(file.include):
            if name not in table:
                path = key_path("include", index, name)
                problems.append(f"{path}: missing, must be given here or in [defaults]: {name} has no default")
    return problems


def _built_in_defaults() -> dict[str, Any]:
    return {
        "negative_prompt": "",
        "steps": 20,
        "guidance_scale": 4.0,
        "shift": 3.0,
        "schedule": "simple",
        "sampler": "euler",
        "noise": "torch",
        "policy": "full",
    }
