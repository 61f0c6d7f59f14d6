"""The logs of a run as figures."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from training.run_folder import RunFolder

SKIPPED = 5  # first lines of a log, whose losses would flatten the rest


def draw_curves(folder: RunFolder) -> list[Path]:
    """Writes `vae.png` and `transformer.png` beside the logs that are there."""
    matplotlib.use("Agg")
    files = []
    for stage in ("vae", "transformer"):
        lines = folder.read_log(stage)[SKIPPED:]
        if not lines:
            continue
        figure = Figure(figsize=(7, 3.5), layout="constrained")
        axes = figure.add_subplot(xlabel="step", ylabel="loss", title=f"picture-book: {stage}")
        axes.plot([line["step"] for line in lines], [line["loss"] for line in lines], color="tab:blue")
        marks = [line for line in lines if "psnr" in line]
        if marks:
            other = axes.twinx()
            other.set_ylabel("PSNR of held-out scenes, dB")
            other.plot([line["step"] for line in marks], [line["psnr"] for line in marks], "o-", color="tab:red")
        files.append(folder.path / f"{stage}.png")
        figure.savefig(files[-1], dpi=110)
    return files
