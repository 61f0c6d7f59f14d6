"""Lists with one prompt a line: those of sd-scripts and of the Anima reference, and A1111's prompts from file."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Iterator

from anima_batch.importers.wanted import FieldReader, ProblemError, Wanted, read_integer

# What an option sets; "" for one that has no meaning here.
_SD_SCRIPTS = {
    "n": "negative_prompt", "w": "width", "h": "height", "d": "seed", "s": "steps", "l": "guidance_scale",
    "fs": "shift", "ss": "sampler", "b": "", "g": "", "t": "", "nl": "", "f": "", "cn": "", "ct": "", "ctr": "",
    "am": "",
}  # fmt: skip
_ANIMA = {
    "n": "negative_prompt", "w": "width", "h": "height", "d": "seed", "s": "steps", "g": "guidance_scale",
    "l": "guidance_scale", "fs": "shift",
}  # fmt: skip
_A1111 = {
    "prompt": "prompt", "negative_prompt": "negative_prompt", "seed": "seed", "steps": "steps",
    "cfg_scale": "guidance_scale", "width": "width", "height": "height", "sampler_name": "sampler",
    "batch_size": "count", "n_iter": "count", "sd_model": "", "outpath_samples": "", "outpath_grids": "",
    "prompt_for_display": "", "styles": "", "subseed_strength": "", "subseed": "", "seed_resize_from_h": "",
    "seed_resize_from_w": "", "sampler_index": "", "restore_faces": "", "tiling": "", "do_not_save_samples": "",
    "do_not_save_grid": "",
}  # fmt: skip
_OPTIONS = {"sd-scripts": _SD_SCRIPTS, "anima": _ANIMA, "a1111": _A1111}

LINE_CHARACTERS = 300_000  # more than both prompts of an image may have

_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ESCAPE = re.compile(r"\\([nrt\\'\"])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}

Read = Callable[[str], FieldReader]


def read_list(text: str, name: str, dialect: str, problems: list[str]) -> Iterator[Wanted]:
    """An image for each line that is not blank, nor a comment where the dialect has comments."""
    read = _read_a1111 if dialect == "a1111" else (lambda line: _read_dashed(line, dialect))
    for number, line in enumerate(map(str.strip, text.split("\n")), start=1):
        if not line or (line.startswith("#") and dialect != "a1111"):
            continue
        where = f"{name} line {number}"
        try:
            if len(line) > LINE_CHARACTERS:
                raise ProblemError(f"must have at most {LINE_CHARACTERS} characters, got {len(line)}")
            yield read(line).finish(where)
        except ProblemError as error:
            problems.append(f"{where}: {error}")


def _read_dashed(line: str, dialect: str) -> FieldReader:
    """`prompt --n negative --w 512`: everything behind ` --` is an option, so that text there is lost to its reader."""
    prompt, *parts = f" {line}".split(" --")
    reader = FieldReader()
    if not prompt.strip():
        raise ProblemError(f"must begin with the prompt, got {line[:60]!r}: see --dialect a1111 for --prompt")
    reader.take_prompt("prompt", _unescape(prompt.strip(), dialect))
    for part in parts:
        option, _, value = part.partition(" ")
        if not _OPTION.fullmatch(option):
            raise ProblemError(f"after ' --' must be an option of {dialect}, got {part[:60]!r}: take the dashes out")
        _take_option(reader, option, _unescape(value.strip(), dialect), dialect)
    return reader


def _unescape(text: str, dialect: str) -> str:
    """The Anima reference reads backslash escapes, so that a line may hold a prompt of several."""
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text) if dialect == "anima" else text


def _read_a1111(line: str) -> FieldReader:
    """A shell's words where the line has `--`, which must all be options; else the line is the prompt."""
    reader = FieldReader()
    if "--" not in line:
        reader.take_prompt("prompt", line, loras=True)
        return reader
    try:
        words = deque(shlex.split(line))
    except ValueError as error:
        raise ProblemError(f"must be options as a shell reads them, got: {str(error).lower()}") from error
    while words:
        word = words.popleft()
        if not word.startswith("--"):
            raise ProblemError(f'must be options such as --prompt "...", got {word!r:.60}: quote what belongs together')
        option = word[2:]
        if not words or (words[0].startswith("--") and _A1111.get(option) not in ("prompt", "negative_prompt")):
            raise ProblemError(f"{word}: its value is missing")
        parts = [words.popleft()]
        if option in ("prompt", "negative_prompt"):
            while words and not words[0].startswith("--"):
                parts.append(words.popleft())
        value = " ".join(parts)
        _take_option(reader, option, value, "a1111")
    if "prompt" not in reader.fields:
        raise ProblemError("must have --prompt")
    return reader


def _take_option(reader: FieldReader, option: str, value: str, dialect: str) -> None:
    known = _OPTIONS[dialect]
    if option not in known:
        if others := [other for other, options in _OPTIONS.items() if option in options]:
            raise ProblemError(
                f"--{option} is an option of {' and '.join(others)}, not of {dialect}, which has "
                f"{', '.join(f'--{name}' for name, field in known.items() if field)}"
            )
        reader.ignore(f"--{option} {value}".strip(), f"no option of {dialect}")
        return
    field, name = known[option], f"--{option}"
    if field == "count":
        reader.count *= read_integer(name, value)
        if reader.count < 1:
            raise ProblemError(f"{name}: must be at least 1, got {value}")
    elif field in ("prompt", "negative_prompt"):
        reader.take_prompt(field, value, loras=dialect == "a1111")
    elif field in ("guidance_scale", "shift"):
        reader.take_number(field, name, value)
    elif field == "sampler":
        reader.take_sampler(name, value)
    elif field:
        reader.take_integer(field, name, value)
    else:
        reader.ignore(f"{name} {value}".strip(), "no meaning here")
