"""An image as another program's file asks for it, in the words of a request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

IMAGES_MAX = 100_000  # as a job may have
RANDOM = -1  # what several programs write for a seed that is to be drawn

_SAMPLERS = {
    "euler": "euler",
    "k_euler": "euler",
    "ab2": "ab2",
    "dpm++ 2m": "dpmpp_2m",
    "dpm++2m": "dpmpp_2m",
    "dpmpp_2m": "dpmpp_2m",
}
_SCHEDULES = {
    "simple": "simple",
    "discrete": "discrete",
    "sgm uniform": "sgm_uniform",
    "sgm_uniform": "sgm_uniform",
    "normal": "normal",
    "beta": "beta",
}
_LORA = re.compile(r"<(?:lora|lyco|hypernet):[^<>]*>")
_CHOICE = re.compile(r"\{[^{}|]*\|[^{}]*\}")


class ProblemError(Exception):
    """What is wrong in one place of a file, without saying where."""


@dataclass(frozen=True)
class Wanted:
    """The request fields that a place of a file gives, a `seed` of None being drawn; `ignored` has a line for the rest.

    `count` images are asked for: with a seed they are those of it and the next ones.
    """

    where: str
    fields: dict[str, Any]
    ignored: tuple[str, ...] = ()
    count: int = 1


class FieldReader:
    """Gathers fields and what is ignored of one place."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.ignored: list[str] = []
        self.count = 1

    def take_integer(self, field: str, name: str, value: object) -> None:
        """A field that is a whole number, as text or as a number; a random seed is None."""
        number = read_integer(name, value)
        self.fields[field] = None if field == "seed" and number == RANDOM else number

    def take_number(self, field: str, name: str, value: object) -> None:
        """A field that is any number."""
        try:
            self.fields[field] = float(value) if isinstance(value, int | float | str) else float("nan")
        except (ValueError, OverflowError):
            self.fields[field] = float("nan")
        if self.fields[field] != self.fields[field]:
            raise ProblemError(f"{name}: must be a number, got {value!r:.80}")

    def take_sampler(self, name: str, value: str) -> None:
        """A sampler, and the schedule where that stands behind it; those that are not here are ignored."""
        text = value.strip().lower()
        known = next((key for key in sorted(_SAMPLERS, key=len, reverse=True) if _begins(text, key)), None)
        if known is None:
            self.ignore(f"{name}: {value}", "not a sampler here, the default is taken")
            return
        self.fields["sampler"] = _SAMPLERS[known]
        if schedule := text[len(known) :].strip():
            self.take_schedule(name, schedule)

    def take_schedule(self, name: str, value: str) -> None:
        """A schedule of sigmas; those that are not here are ignored."""
        if (known := _SCHEDULES.get(value.strip().lower())) is not None:
            self.fields["schedule"] = known
        else:
            self.ignore(f"{name}: {value}", "not a schedule here, the default is taken")

    def take_prompt(self, field: str, text: str, *, loras: bool = False) -> None:
        """A text as it stands; with `loras` without the tags that its program takes out before it encodes."""
        if loras:
            for tag in _LORA.findall(text):
                self.ignore(tag, "there are no LoRAs here")
            text = re.sub(r"[ \t]{2,}", " ", _LORA.sub("", text)).strip() if _LORA.search(text) else text
        if choice := _CHOICE.search(text):
            self.ignored.append(f"{choice[0]:.80} stands as it is: dynamic prompts are not expanded")
        self.fields[field] = text

    def ignore(self, what: str, why: str = "") -> None:
        """A line for a comment."""
        self.ignored.append(f"{what} ignored" + (f": {why}" if why else ""))

    def finish(self, where: str) -> Wanted:
        """What was gathered."""
        return Wanted(where, self.fields, tuple(self.ignored), self.count)


def read_integer(name: str, value: object) -> int:
    """The whole number of a text or a number; raises ProblemError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,40}", value.strip()):
        return int(value)
    raise ProblemError(f"{name}: must be an integer, got {value!r:.80}")


def _begins(text: str, name: str) -> bool:
    return text == name or text.startswith(f"{name} ")
