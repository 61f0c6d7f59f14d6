"""What conversions and their toolkits show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anima_batch.console.results import show_line, show_table

if TYPE_CHECKING:
    from anima_batch.convert.rknn.report import ReportRow


def show_toolkit_report(rows: Sequence[ReportRow], notes: Iterable[str]) -> None:
    """A line for each graph and version, then why some did not build, then what stands beside them."""
    headers = ("graph", "toolkit", "exit", "seconds", "peak GB", "MB", "cosine", "max abs")
    show_table(headers, (_cells(row) for row in rows))
    for line in (*(row.error for row in rows if row.error is not None), *notes):
        show_line(line)


def _cells(row: ReportRow) -> tuple[object, ...]:
    if row.seconds is None or row.peak_rss_bytes is None or row.rknn_bytes is None:
        return (row.case, row.toolkit, row.exit_code, "-", "-", "-", "-", "-")
    return (
        row.case,
        row.toolkit,
        row.exit_code,
        f"{row.seconds:.1f}",
        f"{row.peak_rss_bytes / 1e9:.2f}",
        f"{row.rknn_bytes / 1e6:.2f}",
        f"{row.cosine:.9f}",
        f"{row.max_abs:.2e}",
    )
