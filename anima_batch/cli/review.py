"""The commands of the morning after: which setting was worth it, and a page of everything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anima_batch.cli.arguments import MIN_PSNR_DB, Json, MinPsnr, Workspace, need_extra


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this module where they belong."""
    app.command()(compare)


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
