"""Files in a named dialect as the text of one job file, with comments on all that a job has no word for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from anima_batch.errors import AnimaBatchError, JobError, ModelSetNotFoundError
from anima_batch.files import read_bounded
from anima_batch.importers.comfyui import read_graph
from anima_batch.importers.infotext import read_infotext
from anima_batch.importers.invokeai import read_invokeai
from anima_batch.importers.own import OwnPicture, find_set_name, read_own
from anima_batch.importers.prompt_lists import read_list
from anima_batch.importers.wanted import IMAGES_MAX, Wanted
from anima_batch.job import (
    JOB_BYTES,
    MAX_IMAGES,
    MAX_SEED,
    FieldTable,
    Policy,
    built_in_policies,
    check_fields,
    render_job,
)
from anima_batch.model_set import find_model_set
from anima_batch.store import read_png_texts

Dialect: TypeAlias = Literal["anima-batch", "anima", "sd-scripts", "a1111", "infotext", "comfyui", "invokeai", "sdcpp"]
Reader: TypeAlias = Callable[[str, str, list[str]], Iterator[Wanted]]

FILE_BYTES = 64 << 20
_CHUNKS: Mapping[str, str] = {
    "infotext": "parameters",
    "sdcpp": "parameters",
    "comfyui": "prompt",
    "invokeai": "invokeai_metadata",
}
_DEFAULTS = {
    "negative_prompt": "", "steps": 20, "guidance_scale": 4.0, "shift": 3.0, "schedule": "simple", "sampler": "euler",
    "noise": "torch", "policy": "full", "seed": None,
}  # fmt: skip


@dataclass(frozen=True)
class ImportedJob:
    """The job file's text, the number of its images, and a line for each thing that was ignored."""

    text: str
    images: int
    ignored: tuple[str, ...]


def import_files(paths: Sequence[Path], dialect: Dialect, workspace: Path, model_set: str | None = None) -> ImportedJob:
    """The job that asks for every image of the files; raises JobError with all their problems."""
    problems: list[str] = []
    policies: dict[str, Policy] = {}
    pictures: list[OwnPicture] = []
    wanted: list[Wanted] = []
    for path in paths:
        if dialect == "anima-batch":
            pictures += _read_own(path, policies, problems)
        else:
            wanted += _read_foreign(path, dialect, problems)
    wanted += [picture.wanted for picture in pictures]
    ignored = list(dict.fromkeys(f"{entry.where}: {line}" for entry in wanted for line in entry.ignored))
    if pictures and model_set is None:
        model_set = _name_set(pictures, workspace, ignored, problems)
    problems += dict.fromkeys(problem for entry in wanted for problem in _check(entry, policies))
    name = model_set or "picture-book"
    images, ignored = _list_images(_fill(wanted, name, workspace, ignored, problems), ignored, problems)
    if not images and not problems:
        problems.append(f"{', '.join(map(str, paths))}: must ask for at least one image, got none")
    if problems:
        raise JobError(problems)
    files = ", ".join(path.name for path in paths)
    comments = [f"Imported from {files} as {dialect}", *ignored]
    head = {"model_set": name, **({"max_images": len(images)} if len(images) > MAX_IMAGES else {})}
    text = render_job(images, head=head, policies=policies, comments=comments)
    if (size := len(text)) > JOB_BYTES:
        raise JobError(
            [f"{files}: must make a job file of at most {JOB_BYTES} bytes, got {size}: import fewer at once"]
        )
    return ImportedJob(text, len(images), tuple(ignored))


def _read_own(path: Path, policies: dict[str, Policy], problems: list[str]) -> list[OwnPicture]:
    try:
        return [read_own(path, policies)]
    except AnimaBatchError as error:
        problems += error.lines
        return []


def _name_set(pictures: Sequence[OwnPicture], workspace: Path, ignored: list[str], problems: list[str]) -> str:
    """What the job calls the model set of all the pictures: with another one it would ask for other images."""
    first = pictures[0]
    for other in pictures[1:]:
        if other.set_digest != first.set_digest:
            theirs = f"{other.set_name} ({other.set_digest[:12]})"
            problems.append(
                f"{other.wanted.where}: must be of the model set of {first.wanted.where}, {first.set_name} "
                f"({first.set_digest[:12]}), got one of {theirs}: import it apart, or choose with --model-set"
            )
    if (name := find_set_name(first, workspace)) is not None:
        return name
    ignored.append(
        f"model set {first.set_name} ({first.set_digest[:12]}) is not in {workspace / 'models'}: with another one of "
        "that name the pictures are others"
    )
    return first.set_name


def _read_foreign(path: Path, dialect: Dialect, problems: list[str]) -> list[Wanted]:
    text = _read_text(path, dialect, problems)
    if text is None:
        return []
    name = path.name
    if dialect in ("anima", "sd-scripts", "a1111"):
        return list(read_list(text, name, dialect, problems))
    if dialect in ("infotext", "sdcpp"):
        return list(read_infotext(text, name, problems))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"{name}: must be JSON, got: {error}")
        return []
    return list((read_graph if dialect == "comfyui" else read_invokeai)(content, name, problems))


def _read_text(path: Path, dialect: Dialect, problems: list[str]) -> str | None:
    """The text of a file, or of the chunk that the dialect keeps in a PNG."""
    try:
        data = read_bounded(path, FILE_BYTES)
        if not data.startswith(b"\x89PNG"):
            return data.decode("utf-8-sig").replace("\r\n", "\n")
        texts = read_png_texts(data, str(path))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        problems.append(f"{path}: must be UTF-8, got byte {error.object[error.start]:#04x} at {error.start}")
    except AnimaBatchError as error:
        problems += error.lines
    else:
        chunk = _CHUNKS.get(dialect)
        if chunk in texts:
            return texts[chunk]
        wanted = f"a picture with a {chunk} chunk" if chunk else "a text file"
        problems.append(f"{path}: must be {wanted} for {dialect}, got one with {', '.join(texts) or 'no text'}")
    return None


def _check(entry: Wanted, policies: Mapping[str, Policy]) -> list[str]:
    """A problem for each value that no job may have."""
    given = {name: value for name, value in entry.fields.items() if value is not None}
    _, problems = check_fields(FieldTable, given, (), {**built_in_policies(), **policies})
    return [f"{entry.where}: {problem}" for problem in problems]


def _list_images(
    entries: Sequence[Wanted], ignored: list[str], problems: list[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The fields of each image, those asked for twice once, and what is ignored."""
    images: dict[tuple[Any, ...], dict[str, Any]] = {}
    first: dict[tuple[Any, ...], str] = {}
    repeats: list[str] = []
    asked = 0
    for entry in entries:
        asked += entry.count
        if asked > IMAGES_MAX:  # before they are counted out: two numbers on a line may ask for more than memory holds
            problems.append(f"{entry.where}: must be at most {IMAGES_MAX} images in all")
            return [], ignored
        seed = entry.fields.get("seed")
        if seed is not None and seed <= MAX_SEED < seed + entry.count - 1:
            problems.append(f"{entry.where}: seed: the last of {entry.count} must be at most {MAX_SEED}")
        for number in range(entry.count):
            fields = entry.fields | {"seed": None if seed is None else seed + number}
            key = tuple(sorted(fields.items())) if seed is not None else (len(images), entry.where, number)
            if key in images:
                repeats.append(f"{entry.where}: the same image as {first[key]}, asked for once")
                continue
            images[key], first[key] = fields, entry.where
    return list(images.values()), [*ignored, *repeats]


def _fill(
    entries: Sequence[Wanted], model_set: str, workspace: Path, ignored: list[str], problems: list[str]
) -> list[Wanted]:
    """The same fields in each entry: where one gives a field and another does not, that one has the job's default.

    Only then can be told which of them ask for the same image.
    """
    given = {name for entry in entries for name in entry.fields}
    defaults: dict[str, Any] = dict(_DEFAULTS)
    if any(name not in entry.fields for entry in entries for name in given & {"width", "height"}):
        try:
            defaults["width"], defaults["height"] = find_model_set(model_set, workspace).description.sizes[0]
        except ModelSetNotFoundError as error:
            problems.append(f"width, height: some images give none, and the model set that has them: {error}")
            return []
        ignored.append(f"where no size is given, {defaults['width']}x{defaults['height']} of {model_set} is taken")
    shared = {name: defaults[name] for name in given if name in defaults}
    return [replace(entry, fields=shared | entry.fields) for entry in entries]
