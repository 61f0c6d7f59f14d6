"""What is wrong in a job file: key paths, values as TOML writes them, pydantic's findings in the project's words."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

PROBLEMS_LISTED = 1000  # of one table or axis: nobody reads more
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NUMBERS = {"int_type": "an integer", "float_type": "a number", "finite_number": "a finite number"}
_KINDS = {
    "dict_type": "a table",
    "model_type": "a table",
    "list_type": "a list",
    "tuple_type": "a list",
}

Table = TypeVar("Table", bound=BaseModel)


def key_path(*parts: str | int) -> str:
    """The path of a key such as `matrix.seed[2]`; list indices count from 0, keys that are not bare are quoted."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + (part if _BARE_KEY.fullmatch(part) else json.dumps(part))
    return path


def render_value(value: object) -> str:
    """The value as TOML writes it, on one line of at most about 60 characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return render_string(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = str(value) if not isinstance(value, int) or value.bit_length() < 1000 else "a number of over 300 digits"
    return text if len(text) <= 60 else text[:57] + "..."


def render_string(text: str) -> str:
    """The text as a TOML basic string; JSON's escapes are TOML's, but DEL must be escaped too.

    So is whatever a terminal might obey (U+009B, U+202E): a job file is shown as it stands.
    """
    return "".join(map(_escape, json.dumps(text, ensure_ascii=False)))


def _escape(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":  # blanks such as U+3000 are harmless
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def suggest(word: object, allowed: Iterable[str]) -> str:
    """`, did you mean "spectrum"?` for the nearest allowed word, or nothing."""
    near = difflib.get_close_matches(str(word), list(allowed), n=1, cutoff=0.5)
    return f", did you mean {json.dumps(near[0], ensure_ascii=False)}?" if near else ""


def unknown_key(key: str, allowed: Iterable[str]) -> str:
    """The message for a key that has no meaning where it stands."""
    names = list(allowed)
    return f"unknown key{suggest(key, names) or ','} allowed: {', '.join(names)}"


def not_one_of(word: object, allowed: Iterable[str]) -> str:
    """The message for a word that is none of the allowed ones, with the nearest of them."""
    names = list(allowed)
    return f"must be one of {', '.join(map(json.dumps, names))}, got {render_value(word)}{suggest(word, names)}"


def check_table(
    model: type[Table], raw: Mapping[str, Any], where: tuple[str | int, ...], *, lead: bool = True
) -> tuple[Table | None, list[str]]:
    """The table as its model, None where something is wrong, and every problem as `key path: message`.

    Without `lead` the first key of a finding is left out of its path: the table was made up for one value at `where`.
    """
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        found = error.errors(include_url=False)
    problems = []
    for finding in found[:PROBLEMS_LISTED]:
        location = finding["loc"] if lead else finding["loc"][1:]
        problems.append(f"{key_path(*where, *location)}: {_describe(model, finding)}")
    if len(found) > PROBLEMS_LISTED:
        more = len(found) - PROBLEMS_LISTED
        problems.append(f"{key_path(*where) or 'and'}: {more} more problems like these")
    return None, problems


def bad_keys(model: type[BaseModel], raw: Mapping[str, Any]) -> set[str]:
    """The keys of the table that have a problem, or miss."""
    try:
        model.model_validate(raw)
    except ValidationError as error:
        return {str(finding["loc"][0]) for finding in error.errors(include_url=False) if finding["loc"]}
    return set()


def _describe(model: type[BaseModel], finding: Any) -> str:  # noqa: ANN401 - pydantic's own record
    kind, location, got = finding["type"], finding["loc"], finding["input"]
    if kind == "extra_forbidden":
        return unknown_key(str(location[-1]), _table_at(model, location[:-1]).model_fields)
    if kind == "value_error":
        return str(finding["ctx"]["error"])
    allowed, literals = _allowed(model, location)
    if kind == "too_long":
        return f"must be at most {finding['ctx']['max_length']} {allowed}, got {finding['ctx']['actual_length']}"
    if kind == "missing":
        return f"missing, must be {allowed}"
    if literals:
        return not_one_of(got, literals)
    if kind in _NUMBERS:
        allowed = f"{_NUMBERS[kind]}{' ' if allowed[:1].isdigit() else ', '}{allowed}"
    return f"must be {allowed or _KINDS.get(kind, 'another value')}, got {render_value(got)}"


def _table_at(model: type[BaseModel], location: tuple[str | int, ...]) -> type[BaseModel]:
    for key in location:
        annotation = model.model_fields[str(key)].annotation if str(key) in model.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    return model


def _allowed(model: type[BaseModel], location: tuple[str | int, ...]) -> tuple[str, tuple[str, ...]]:
    """What the field may be, in words, and its literals if it has some."""
    names = [key for key in location if isinstance(key, str)]
    table = _table_at(model, tuple(names[:-1]))
    if not names or (field := table.model_fields.get(names[-1])) is None:
        return "", ()
    if get_origin(field.annotation) is Literal:
        literals = tuple(map(str, get_args(field.annotation)))
        return f"one of {', '.join(map(json.dumps, literals))}", literals
    if field.annotation is bool:
        return "true or false", ()
    return field.description or "", ()
