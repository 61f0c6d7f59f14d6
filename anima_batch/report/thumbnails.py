"""Small copies of the pictures, as data: URIs that keep the page within its size."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image

from anima_batch.compare import Record
from anima_batch.errors import StorageError
from anima_batch.store import CorruptError

_SIDES = (256, 192, 160, 128, 96, 64)  # pixels of the longer side
_SAMPLED = 24  # pictures from which the size of all is told
_RESERVE = 1.2
_QUALITY = 80
_BASE64_SHARE = 3 / 4  # bytes of a file in a character


def make_thumbnails(records: Sequence[Record], budget_bytes: float) -> dict[str, str]:
    """A data: URI by the stem of each finished image whose file can be read.

    All are of one size, the largest with which the URIs stay within the budget, or the smallest there is.
    """
    pictures = [entry for entry in records if entry.manifest.status == "done"]
    sample = pictures[:: max(1, len(pictures) // _SAMPLED)]
    side = next(
        (side for side in _SIDES if _fits(sample, side, budget_bytes * _BASE64_SHARE / max(1, len(pictures)))),
        _SIDES[-1],
    )
    made = ((entry.stem, _make(entry, side)) for entry in pictures)
    return {stem: f"data:image/webp;base64,{base64.b64encode(data).decode('ascii')}" for stem, data in made if data}


def _fits(sample: Sequence[Record], side: int, bytes_each: float) -> bool:
    return sum(len(_make(entry, side)) for entry in sample) * _RESERVE <= bytes_each * len(sample)


def _make(record: Record, side: int) -> bytes:
    """WebP, never larger than the picture itself; empty where that is gone."""
    try:
        image = Image.fromarray(record.read_pixels())
    except (CorruptError, StorageError):  # changed or gone: the page says so
        return b""
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, format="WEBP", quality=_QUALITY, method=2)
    return stream.getvalue()
