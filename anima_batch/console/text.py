"""Text for people: durations, and strings that cannot disturb a terminal."""

from __future__ import annotations


def format_seconds(seconds: float | None) -> str:
    """`2 h 05 min`, `3 min 20 s`, `4.2 s`, or `unknown`."""
    if seconds is None:
        return "unknown"
    if seconds >= 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 60)} min {int(seconds % 60):02d} s" if seconds >= 60 else f"{seconds:.1f} s"


def printable(text: str) -> str:
    """The text with control characters escaped: a prompt must not move the cursor or colour the terminal."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)
