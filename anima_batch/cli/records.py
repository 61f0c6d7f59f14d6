"""The commands that go from a picture to what made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anima_batch.cli.arguments import Job, Json, Workspace


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this module where they belong."""
    app.command("audit")(audit)
    app.command("verify")(verify)


def audit(
    paths: Annotated[list[Path], typer.Argument(help="PNGs, manifests or folders.", show_default=False)],
    weights: Annotated[
        str | None,
        typer.Option(help="Only pictures made with this file of weights, or with this SHA-256 (10+ digits)."),
    ] = None,
    by: Annotated[Literal["model_set"] | None, typer.Option(help="Sum up: a row for each model set.")] = None,
    sha256: Annotated[
        bool, typer.Option("--sha256", help="Read model files by SHA-256 too, not by XXH3 alone.")
    ] = False,
    workspace: Workspace = Path(),
    json: Json = False,
) -> None:
    """Tell which model set, weights, versions, seed and policy made a picture; every digest is checked."""
    from anima_batch import audit as auditing
    from anima_batch.console import audits as shown

    audits = auditing.audit_paths(paths, workspace, sha256=sha256)
    if weights is not None:
        audits = auditing.select_made_with(audits, auditing.identify_weights(weights))
    if by is None:
        changed = shown.show_audits(audits, json=json)
    else:
        groups = auditing.group_by_model_set(audits if json else shown.tell_changed(audits))
        shown.show_groups(groups, json=json)
        changed = any(group.changed for group in groups)
    if changed:
        raise typer.Exit(3)


def verify(job: Job, workspace: Workspace = Path(), json: Json = False) -> None:
    """Check every finished image and every checkpoint of a job."""
    from anima_batch.audit import verify_job
    from anima_batch.batch import open_batch
    from anima_batch.console.audits import show_audits

    if show_audits(verify_job(open_batch(job, workspace, draw=False)), json=json):
        raise typer.Exit(3)
