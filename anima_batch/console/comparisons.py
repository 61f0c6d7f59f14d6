"""What `compare` found, as tables and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anima_batch.compare.figures import comparison_figures, setting_figures, total_figures
from anima_batch.compare.summary import sum_up, summarise_settings
from anima_batch.console.results import ROWS_SHOWN, show_line, show_table

if TYPE_CHECKING:
    from anima_batch.compare import Against, Comparison, SettingSummary

_NONE = "-"


def comparisons_json(comparisons: Sequence[Comparison], problems: Sequence[str], min_psnr_db: float) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "images": [comparison_figures(entry) for entry in comparisons],
        "settings": [setting_figures(summary) for summary in summarise_settings(comparisons)],
        "sums": total_figures(sum_up(comparisons)),
        "flagged": sum(bool(entry.flags) for entry in comparisons),
        "min_psnr_db": min_psnr_db,
        "problems": list(problems),
    }


def show_comparisons(comparisons: Sequence[Comparison]) -> None:
    """The settings, the first images, the sums, then what speaks against an image."""
    show_table(
        ("setting", "images", "passes", "seconds", "beside", "passes saved", "time saved", "PSNR dB", "worst", "SSIM",
         "contrast", "cosine", "converged dB", "control dB", "flagged"),
        map(_setting_row, summarise_settings(comparisons)),
    )  # fmt: skip
    compared = [entry for entry in comparisons if entry.twin]
    show_line("")
    show_table(
        (
            "image",
            "beside",
            "PSNR dB",
            "SSIM",
            "contrast",
            "latent std",
            "parted at step",
            "passes",
            "time saved",
            "control",
            "gain dB",
        ),
        [_image_row(entry, entry.twin) for entry in compared[:ROWS_SHOWN] if entry.twin],
    )
    if len(compared) > ROWS_SHOWN:
        show_line(f"... and {len(compared) - ROWS_SHOWN} more: --json lists all")
    show_line("")
    show_table(
        ("sum of all that have one beside them", "beside", "image", "change"),
        [
            (total.what, _plain(total.reference), _plain(total.image), _percent(total.change))
            for total in sum_up(compared)
        ],
    )
    for entry in comparisons:
        for flag in entry.flags:
            show_line(f"flag: {entry.record.stem}: {flag}")
    flagged = sum(bool(entry.flags) for entry in comparisons)
    show_line(
        f"{len(compared)} compared, {len(comparisons) - len(compared)} with nothing beside them, {flagged} flagged"
    )


def _setting_row(summary: SettingSummary) -> tuple[object, ...]:
    return (
        summary.setting,
        summary.images,
        f"{summary.passes:g}",
        f"{summary.seconds:.2f}",
        summary.reference or _NONE,
        _percent(summary.passes_saved),
        _percent(summary.seconds_saved),
        _decibel(summary.psnr_db),
        _decibel(summary.worst_psnr_db),
        _fixed(summary.ssim, 4),
        _fixed(summary.contrast, 3),
        _fixed(summary.cosine, 4),
        _decibel(summary.converged_psnr_db),
        _signed(summary.gain_db),
        summary.flagged,
    )


def _image_row(entry: Comparison, twin: Against) -> tuple[object, ...]:
    return (
        entry.record.stem,
        twin.reference.setting,
        _decibel(twin.likeness.psnr_db),
        _fixed(twin.likeness.ssim, 4),
        _fixed(twin.likeness.contrast, 3),
        _fixed(twin.latent_std, 3),
        twin.first_difference or _NONE,
        f"{entry.record.passes} of {twin.reference.passes}",
        _percent(twin.seconds_saved_share),
        entry.control.record.setting if entry.control else _NONE,
        _signed(entry.control.gain_db if entry.control else None),
    )


def _decibel(value: float | None) -> str:
    return "same" if value == math.inf else _fixed(value, 1)


def _fixed(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _signed(value: float | None) -> str:
    return _NONE if value is None else f"{value:+.1f}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.2f} %"


def _plain(value: float) -> str:
    return f"{value:g}" if value.is_integer() else f"{value:.2f}"
