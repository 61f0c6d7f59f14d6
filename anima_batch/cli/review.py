"""The commands of the morning after: which setting was worth it, and a page of everything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anima_batch.cli.arguments import MIN_PSNR_DB, Json, MinPsnr, Workspace, need_extra


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this module where they belong."""
    app.command()(compare)
    app.command()(report)


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A job or its folder; or two of jobs, folders, PNGs, manifests.", show_default=False),
    ],
    workspace: Workspace = Path(),
    min_psnr: MinPsnr = MIN_PSNR_DB,
    json: Json = False,
) -> None:
    """Compare each image with its `full` twin and with plain sampling of as many passes, or one run with another."""
    from anima_batch.console import results

    with need_extra("compare", "report"):
        from anima_batch import compare as comparing
        from anima_batch.console import comparisons as shown
    found = comparing.compare_paths(paths, workspace, min_psnr)
    results.show_warnings(found.problems)
    if json:
        results.show_json(shown.comparisons_json(found.comparisons, found.problems, min_psnr))
    else:
        shown.show_comparisons(found.comparisons)


def report(
    job: Annotated[Path, typer.Argument(help="A job file (TOML), or a job's folder in outputs/.", show_default=False)],
    workspace: Workspace = Path(),
    out: Annotated[Path | None, typer.Option(help="Instead of outputs/<job>/report.html.")] = None,
    min_psnr: MinPsnr = MIN_PSNR_DB,
    json: Json = False,
) -> None:
    """Write one self-contained HTML page of a job: its pictures, what they took, comparisons, failures."""
    from anima_batch.console import results

    with need_extra("report", "report"):
        from anima_batch.report import write_report
    written = write_report(job, workspace, out, min_psnr)
    results.show_warnings(written.problems)
    if json:
        results.show_json({"path": str(written.path), "images": written.images, "bytes": written.bytes})
    else:
        results.show_line(f"{written.path}: {written.images} images, {written.bytes / 1e6:.1f} MB")
