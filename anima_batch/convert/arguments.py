"""The command line's words as conversion options."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from anima_batch.convert.inputs import LATENT_MEAN, LATENT_STD
from anima_batch.errors import UsageError


def parse_sizes(words: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(width, height) pairs of words such as 512x512; raises UsageError."""
    sizes = []
    for word in words:
        if not (match := re.fullmatch(r"(\d{1,5})x(\d{1,5})", word)):
            raise UsageError(f"--size: must be WIDTHxHEIGHT in pixels, such as 512x512, got {word!r}")
        sizes.append((int(match[1]), int(match[2])))
    return tuple(sizes)


def parse_statistics(option: str, text: str | None) -> tuple[float, ...]:
    """One number a latent channel of a comma-separated list, the official ones without it; raises UsageError."""
    official = LATENT_MEAN if option == "--latent-mean" else LATENT_STD
    if text is None:
        return official
    try:
        numbers = tuple(float(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != len(official) or not all(map(math.isfinite, numbers)):
        raise UsageError(f"{option}: must be {len(official)} numbers with commas between them, got {text!r}")
    return numbers
