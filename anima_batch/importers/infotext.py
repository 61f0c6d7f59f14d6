"""The text that A1111 and stable-diffusion.cpp put into a picture: prompt, negative prompt, a line of fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from anima_batch.importers.wanted import FieldReader, ProblemError, Wanted

_NEGATIVE = "Negative prompt:"
_NOISE = {"cpu": "torch", "nv": "philox", "cuda": "philox"}
_OPENING, _CLOSING = "{[", "}]"
_FIELD = re.compile(r"([A-Za-z][^:]*):\s*(.*)", re.DOTALL)


def read_infotext(text: str, name: str, problems: list[str]) -> Iterator[Wanted]:
    """The image of one text."""
    lines = text.rstrip().split("\n")
    where = f"{name} line {len(lines)}"
    try:
        yield _read_lines(lines).finish(where)
    except ProblemError as error:
        problems.append(f"{where}: {error}")


def _read_lines(lines: list[str]) -> FieldReader:
    if not lines[-1].lstrip().startswith("Steps: "):
        raise ProblemError(f"the last line must begin with 'Steps: ', got {lines[-1][:60]!r}")
    reader = FieldReader()
    prompt, negative = _part_prompts(lines[:-1])
    reader.take_prompt("prompt", prompt, loras=True)
    if negative:
        reader.take_prompt("negative_prompt", negative, loras=True)
    for part in _split_fields(lines[-1]):
        match = _FIELD.fullmatch(part)
        if match is None:
            raise ProblemError(f"must be fields such as 'Seed: 7', got {part[:60]!r}")
        _take_field(reader, match[1].strip(), _unquote(match[2].strip()))
    return reader


def _part_prompts(lines: list[str]) -> tuple[str, str]:
    """The prompt, and the negative one from the line that begins so."""
    start = next((at for at, line in enumerate(lines) if line.startswith(_NEGATIVE)), None)
    if start is None:
        return "\n".join(lines).strip(), ""
    negative = [lines[start].removeprefix(_NEGATIVE), *lines[start + 1 :]]
    return "\n".join(lines[:start]).strip(), "\n".join(negative).strip()


def _split_fields(line: str) -> Iterator[str]:
    """The parts between commas that stand in no quotes and no brackets."""
    start, depth, quoted, escaped = 0, 0, False, False
    for at, character in enumerate(line):
        if escaped:
            escaped = False
        elif quoted:
            escaped = character == "\\"
            quoted = character != '"'
        elif character == '"':
            quoted = True
        elif character == "," and depth == 0:
            yield line[start:at].strip()
            start = at + 1
        else:
            depth += (character in _OPENING) - (character in _CLOSING)
    if quoted or depth:
        raise ProblemError(f"a quote or bracket is not closed in {line[start:][:60].strip()!r}")
    if rest := line[start:].strip():
        yield rest


def _unquote(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        return str(json.loads(value))
    except ValueError as error:
        raise ProblemError(f"must be text in quotes, got {value[:60]}") from error


def _take_field(reader: FieldReader, name: str, value: str) -> None:
    match name:
        case "Steps" | "Seed":
            reader.take_integer(name.lower(), name, value)
        case "CFG scale" | "Shift":
            reader.take_number("guidance_scale" if name == "CFG scale" else "shift", name, value)
        case "Size":
            if (size := re.fullmatch("([0-9]{1,6})x([0-9]{1,6})", value)) is None:
                raise ProblemError(f"Size: must be such as 512x768, got {value[:60]!r}")
            reader.fields |= {"width": int(size[1]), "height": int(size[2])}
        case "Sampler":
            reader.take_sampler(name, value)
        case "Schedule type":
            reader.take_schedule(name, value)
        case "RNG" if value.lower() in _NOISE:
            reader.fields["noise"] = _NOISE[value.lower()]
        case _ if value:
            reader.ignore(f"{name}: {value}")
