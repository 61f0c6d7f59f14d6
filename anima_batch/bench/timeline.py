"""The timeline of a measured step as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image

from anima_batch.backends.base import Span
from anima_batch.bench.step import StepMeasure
from anima_batch.board import picture

STREAMS = 2
_ROWS = {"run": "core 0", "host": "host"}  # the rest is the stager's, or would be if there were one


def save_measures(measures: Iterable[StepMeasure], path: Path) -> None:
    """Each step, one below the other, as a PNG; raises UsageError or StorageError."""
    picture.save_images([draw_measure(measure) for measure in measures], path)


def draw_measure(measure: StepMeasure) -> Image.Image:
    """Who was busy when."""
    title = f"measured: {measure.choice.name}: {measure.seconds:.2f} s, busy {100 * measure.busy_share:.1f} %"
    return picture.draw_timeline(title, list(_draw_spans(measure.spans)), (0.0, measure.seconds))


def _draw_spans(spans: Iterable[Span]) -> Iterator[picture.Span]:
    """What is done twice is done for the first CFG stream and then for the second."""
    seen: Counter[tuple[str, str]] = Counter()
    for span in spans:
        stream = seen[span.phase, span.name] % STREAMS
        seen[span.phase, span.name] += 1
        yield picture.Span(_ROWS.get(span.phase, "stager"), span.phase, span.started, span.ended, stream)
