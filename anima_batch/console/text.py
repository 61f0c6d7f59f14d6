"""Text for people: durations, and strings that cannot disturb a terminal."""

from __future__ import annotations

import json
import math
from typing import Any

LINE_CHARACTERS = 4000  # of an error: a file may hold a key of a megabyte


def format_seconds(seconds: float | None) -> str:
    """`2 h 05 min`, `3 min 20 s`, `4.2 s`, or `unknown`."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s" if seconds >= 60 else f"{seconds:.1f} s"


def printable(text: str) -> str:
    """The text on one line with control characters escaped: a name must not move the cursor or colour the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def shorten(text: str) -> str:
    """The text without its middle where it is too long to be read."""
    half = LINE_CHARACTERS // 2
    return text if len(text) <= LINE_CHARACTERS else f"{text[:half]} [...] {text[-half:]}"


def printable_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Indented JSON in which every character that is not printable is escaped, not only those that JSON forbids.

    A terminal takes U+009B for the start of a command, and U+202E turns the rest of a line round.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if text.isascii() and "\x7f" not in text:
        return text
    return "\n".join(line if line.isprintable() else _escape_json(line) for line in text.split("\n"))


def _escape_json(line: str) -> str:
    """Such characters stand in strings alone, where their escape means the same."""
    return "".join(character if character.isprintable() else json.dumps(character)[1:-1] for character in line)
