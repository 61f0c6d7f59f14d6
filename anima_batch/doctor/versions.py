"""Version numbers as Rockchip's tools print them, and which of them go together."""

from __future__ import annotations

import re
from typing import NamedTuple

_NUMBERS = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")


class Version(NamedTuple):
    """Compares as one expects."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


# Rockchip's manual asks for the first; 0.9.3 fails to submit graphs (radxa/kernel 312), and core masks want the second.
DRIVER_LEAST, DRIVER_GOOD = Version(0, 9, 2), Version(0, 9, 6)

# The file format of the toolkits since 1.5.2; older runtimes answer "Invalid RKNN model version 6".
RUNTIME_LEAST = Version(2, 0, 0)


def parse_version(text: str) -> Version | None:
    """The first three numbers with points between them; None where there are none."""
    match = _NUMBERS.search(text)
    return Version(*map(int, match.groups())) if match else None


def format_version(version: Version | None) -> str:
    """`2.3.2`, or `unknown`."""
    return str(version) if version else "unknown"
