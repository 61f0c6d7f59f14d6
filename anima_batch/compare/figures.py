"""Comparisons as plain JSON values; JSON has no infinity: the same picture has `psnr_db` null and `same` true."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from anima_batch.compare.comparison import Against, Comparison, Control, making_seconds
from anima_batch.compare.summary import SettingSummary, Total, find_end_cosine


def comparison_figures(entry: Comparison) -> dict[str, Any]:
    """One image beside its references."""
    return {
        "image": entry.record.stem,
        "request_id": entry.record.manifest.request_id,
        "setting": entry.record.setting,
        "passes": entry.record.passes,
        "seconds": making_seconds(entry.record),
        "twin": None if entry.twin is None else _against_figures(entry, entry.twin),
        "converged": None if entry.converged is None else _against_figures(entry, entry.converged),
        "control": None if entry.control is None else _control_figures(entry.control),
        "flags": list(entry.flags),
    }


def setting_figures(summary: SettingSummary) -> dict[str, Any]:
    """One setting's means."""
    return {key: _finite(value) for key, value in asdict(summary).items()} | {"same": summary.psnr_db == math.inf}


def total_figures(totals: Sequence[Total]) -> list[dict[str, Any]]:
    """The sums."""
    return [{**asdict(total), "change": total.change} for total in totals]


def _against_figures(entry: Comparison, against: Against) -> dict[str, Any]:
    likeness = against.likeness
    return {
        "image": against.reference.stem,
        "setting": against.reference.setting,
        "psnr_db": _finite(likeness.psnr_db),
        "same": likeness.psnr_db == math.inf,
        "ssim": likeness.ssim,
        "contrast": likeness.contrast,
        "latent_std": _finite(against.latent_std),
        "latent_cosine": find_end_cosine(entry, against),
        "latent_cosines": [[found.step, found.cosine] for found in against.cosines],
        "first_different_step": against.first_difference,
        "passes_saved": against.passes_saved,
        "passes_saved_share": against.passes_saved_share,
        "seconds_saved": against.seconds_saved,
        "seconds_saved_share": against.seconds_saved_share,
    }


def _control_figures(control: Control) -> dict[str, Any]:
    return {
        "image": control.record.stem,
        "setting": control.record.setting,
        "judge": control.judge.setting,
        "psnr_db": _finite(control.psnr_db),
        "same": control.psnr_db == math.inf,
        "gain_db": _finite(control.gain_db),
    }


def _finite(value: Any) -> Any:  # noqa: ANN401 - any figure
    return None if isinstance(value, float) and not math.isfinite(value) else value
