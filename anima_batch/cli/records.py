"""The commands that go from a picture to what made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anima_batch.cli.arguments import Job, Json, WithControls, Workspace
from anima_batch.errors import UsageError

Dialect = Literal["anima-batch", "anima", "sd-scripts", "a1111", "infotext", "comfyui", "invokeai", "sdcpp"]


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this module where they belong."""
    app.command("audit")(audit)
    app.command("verify")(verify)
    app.command("reproduce")(reproduce)
    app.command("import")(import_job)


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


def verify(job: Job, workspace: Workspace = Path(), with_controls: WithControls = False, json: Json = False) -> None:
    """Check every finished image and every checkpoint of a job."""
    from anima_batch.audit import verify_job
    from anima_batch.batch import open_batch
    from anima_batch.console.audits import show_audits

    if show_audits(verify_job(open_batch(job, workspace, draw=False, with_controls=with_controls)), json=json):
        raise typer.Exit(3)


def reproduce(
    file: Annotated[Path, typer.Argument(help="A manifest or a PNG of anima-batch.", show_default=False)],
    allow_different: Annotated[
        bool, typer.Option("--allow-different", help="Go on with another model set, or with changed files of it.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Keep the new picture in this folder, and go on there after a stop.")
    ] = None,
    workspace: Workspace = Path(),
    json: Json = False,
) -> None:
    """Make a picture again and tell whether it is the same: pixels, latents after each step, environment."""
    import tempfile

    from anima_batch import reproduce as reproduction
    from anima_batch import runner
    from anima_batch.console import events, reproductions

    original = reproduction.read_original(file, workspace)
    with (
        tempfile.TemporaryDirectory(prefix="anima-batch-") as scratch,
        runner.catch_stop_signals(events.show_stopping) as stop,
    ):
        folder = out or Path(scratch)
        undertaking = reproduction.prepare_run(original, workspace, folder, allow_different=allow_different)
        run = runner.RunOptions(run_flags=undertaking.flags, retry_failed=True, accept_environment=True)
        ended = events.follow_run(runner.run_job(undertaking.job, undertaking.workspace, run, stop))
        if ended.exit_code:
            raise typer.Exit(ended.exit_code)
        compared = reproduction.compare_made(original, undertaking)
    reproductions.show_reproduction(compared, out, json=json)
    if not compared.identical:
        raise typer.Exit(3)


def import_job(
    files: Annotated[
        list[Path], typer.Argument(help="Prompt lists, infotexts, JSON files or PNGs.", show_default=False)
    ],
    dialect: Annotated[Dialect, typer.Option(help="Which program's: nothing is guessed.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="The job file to write; it must not exist. Else stdout.")] = None,
    model_set: Annotated[str | None, typer.Option(help="Of the job; of a picture of ours it is known.")] = None,
    workspace: Workspace = Path(),
    json: Json = False,
) -> None:
    """Make a job file of another program's prompts, or of pictures; what a job has no word for becomes a comment."""
    import os
    from dataclasses import asdict

    from anima_batch import importers
    from anima_batch.console import results
    from anima_batch.files import make_folder, write_atomic

    if out is not None and os.path.lexists(out):
        raise UsageError(f"--out: must be a file that does not exist yet, got {out}: it is never overwritten")
    imported = importers.import_files(files, dialect, workspace, model_set)
    results.show_warnings(imported.ignored)
    if out is not None:
        make_folder(out.parent)
        write_atomic(out, imported.text.encode())
    if json:
        results.show_json(asdict(imported))
    elif out is None:
        typer.echo(imported.text, nl=False)
    else:
        results.show_line(f"{out}: {imported.images} images; see `anima-batch plan {out}`")
