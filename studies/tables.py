"""The figures as Markdown tables: means over the prompts, with their standard errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from studies.figures import Figure, Figures, Subject
from studies.settings import CONVERGED, EULER_20, EULER_200, REFERENCES, Setting, find_preset

_BANDS = (35, 40, 45)  # dB

Values: TypeAlias = npt.NDArray[np.float64]  # one a prompt


@dataclass(frozen=True)
class Row:
    """A setting and its figures, one a prompt."""

    setting: Setting
    figures: list[Figure]

    @property
    def passes(self) -> int:
        """Transformer evaluations of one picture, as they were counted."""
        return self.figures[0].passes

    @property
    def contrast(self) -> Values:
        """RMS contrast of each picture."""
        return np.array([figure.contrast for figure in self.figures])

    @property
    def latent_std(self) -> Values:
        """Standard deviation of each picture's latents."""
        return np.array([figure.latent_std for figure in self.figures])

    def psnr(self, reference: Setting = CONVERGED) -> Values:
        """PSNR of each picture to a reference, dB."""
        return np.array([figure.psnr[reference.label] for figure in self.figures])

    def ssim(self, reference: Setting = CONVERGED) -> Values:
        """SSIM of each picture to a reference."""
        return np.array([figure.ssim[reference.label] for figure in self.figures])


@dataclass(frozen=True)
class Report:
    """The tables over one set of prompts."""

    figures: Figures
    subjects: Sequence[Subject]

    def draw_quality(self, settings: Iterable[Setting], *, beside_plain: bool) -> str:
        """The distances of each setting, if asked for beside those of plain sampling of equal passes."""
        header = ["setting", "passes", "converged, dB", "as near as Euler 20", "SSIM", "contrast", "latents"]
        header += ["Euler 20, dB", "SSIM", "Euler 200, dB"]
        if beside_plain:
            header += ["plain, same solver", "gain, dB", "plain, best solver", "gain, dB"]
        rows = []
        for row in map(self.row, settings):
            rows.append(self._quality_cells(row) + (self._plain_cells(row) if beside_plain else []))
        return draw_table(header, rows)

    def draw_agreement(self, settings: Iterable[Setting]) -> str:
        """How near each setting is to each of the references, dB."""
        rows = [
            [row.setting.label, *(_mean_and_error(row.psnr(reference)) for reference in REFERENCES)]
            for row in map(self.row, settings)
        ]
        return draw_table(["", *(f"to {reference.label}" for reference in REFERENCES)], rows)

    def draw_trial(self, published: Mapping[Setting, tuple[float | None, float | None]]) -> str:
        """Distances to Euler 200 and Euler 20 beside those of an earlier trial, dB."""
        rows = [
            [
                row.setting.label,
                str(row.passes),
                *_beside(row.psnr(EULER_200), published[row.setting][0]),
                *_beside(row.psnr(EULER_20), published[row.setting][1]),
            ]
            for row in map(self.row, published)
        ]
        return draw_table(["setting", "passes", "Euler 200, dB", "trial", "Euler 20, dB", "trial"], rows)

    def find_nearest(self, settings: Iterable[Setting]) -> list[Setting]:
        """For each number of passes the setting that comes nearest to the converged pictures, fewest passes first."""
        nearest: dict[int, Row] = {}
        for row in map(self.row, settings):
            if row.passes not in nearest or row.psnr().mean() > nearest[row.passes].psnr().mean():
                nearest[row.passes] = row
        return [nearest[passes].setting for passes in sorted(nearest)]

    def row(self, setting: Setting) -> Row:
        """A setting with its figures."""
        return Row(setting, self.figures.of(setting, self.subjects))

    def _quality_cells(self, row: Row) -> list[str]:
        base, converged = self.row(EULER_20), self.row(CONVERGED)
        return [
            _emphasise(row.setting),
            str(row.passes),
            _mean_and_error(row.psnr()),
            f"{np.count_nonzero(row.psnr() >= base.psnr())} of {len(self.subjects)}",
            f"{row.ssim().mean():.4f}",
            f"{(row.contrast / converged.contrast).mean():.3f}",
            f"{(row.latent_std / converged.latent_std).mean():.3f}",
            _mean(row.psnr(EULER_20)),
            f"{row.ssim(EULER_20).mean():.4f}",
            _mean(row.psnr(EULER_200)),
        ]

    def _plain_cells(self, row: Row) -> list[str]:
        """Plain sampling of equal passes by the same solver and by the best one: its dB, and the row's gain over it."""
        twins = [self.row(twin) for twin in row.setting.plain_twins]
        best = max(twins, key=lambda twin: float(twin.psnr().mean()))
        cells = []
        for twin in (next(twin for twin in twins if twin.setting.sampler == row.setting.sampler), best):
            gain = row.psnr() - twin.psnr()
            cells += [f"{twin.setting.label}: {_mean(twin.psnr())}", _gain(gain)]
        return cells


def draw_decision(settings: Iterable[Setting], reports: Mapping[str, Report]) -> str:
    """What each setting gains over Euler 20 towards the converged pictures, for each set of prompts by its name."""
    header = ["setting", "passes", "board, min"]
    for name in reports:
        header += [f"{name}: gain, dB", "to Euler 200", "as near on", "worst, dB", "SSIM"]
    rows = []
    for setting in settings:
        cells = [_emphasise(setting), str(setting.passes), f"{setting.board_minutes:.1f}"]
        for report in reports.values():
            cells += _decision_cells(report.row(setting), report.row(EULER_20))
        rows.append(cells)
    return draw_table(header, rows)


def draw_bands(setting: Setting, report: Report) -> str:
    """The gain of a setting over Euler 20 where Euler 20 is far from the converged pictures, and where it is near."""
    near = report.row(EULER_20).psnr()
    gain = report.row(setting).psnr() - near
    rows = []
    for low, high in pairwise((0, *_BANDS, np.inf)):
        inside = gain[(near >= low) & (near < high)]
        if len(inside):
            name = f"from {low}" if high == np.inf else f"up to {high}"
            rows.append([name, str(len(inside)), str(np.count_nonzero(inside >= 0)), f"{inside.mean():+.1f}"])
    return draw_table(["Euler 20, dB", "prompts", f"{setting.label} as near on", "gain, dB"], rows)


def _decision_cells(row: Row, base: Row) -> list[str]:
    near, gain = row.psnr(), row.psnr() - base.psnr()
    rough = row.psnr(EULER_200) - base.psnr(EULER_200)
    as_near = f"{np.count_nonzero(gain >= 0)} of {len(gain)}"
    return [_gain(gain), _gain(rough), as_near, f"{near.min():.1f}", f"{row.ssim().mean():.4f}"]


def draw_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _emphasise(setting: Setting) -> str:
    """The label, bold for what all is held against and for the preset."""
    return f"**{setting.label}**" if setting in (EULER_20, find_preset("balanced")) else setting.label


def _gain(values: Values) -> str:
    return f"{values.mean():+.1f} ± {_error(values):.1f}"


def _mean(values: Values) -> str:
    return f"{values.mean():.1f}" if np.isfinite(values).all() else "itself"


def _mean_and_error(values: Values) -> str:
    return f"{_mean(values)} ± {_error(values):.1f}" if np.isfinite(values).all() else _mean(values)


def _error(values: Values) -> float:
    """The standard error of the mean."""
    return float(values.std(ddof=1) / sqrt(len(values)))


def _beside(values: Values, published: float | None) -> list[str]:
    return [_mean(values), "" if published is None else f"{published:.1f}"]
