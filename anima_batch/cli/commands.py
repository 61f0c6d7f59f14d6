"""The commands.

Modules are imported in the commands that need them, so that --help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anima_batch import __version__
from anima_batch.cli import convert, fleet, records, review
from anima_batch.cli.arguments import Job, Json, ModelSetName, TwoWordGroup, WithControls, Workspace
from anima_batch.cli.bench import bench
from anima_batch.errors import ModelSetError, UsageError

app = typer.Typer(
    cls=TwoWordGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models = typer.Typer(help="Model sets, their digests and licences.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(models, name="models")
app.add_typer(bench, name="bench")

Staging = Literal["auto", "on-demand", "ahead", "pinned", "resident"]


@app.command()
def plan(
    job: Job,
    workspace: Workspace = Path(),
    board: Annotated[
        str | None, typer.Option(help="The ETA on that board, simulated: a built-in timing table, or a file.")
    ] = None,
    with_controls: WithControls = False,
    json: Json = False,
) -> None:
    """Show what a run would do, how long it takes and how much disk it needs; writes nothing."""
    from anima_batch import batch
    from anima_batch.console import results

    opened = batch.open_batch(job, workspace, draw=False, with_controls=with_controls)
    found = batch.plan_batch(opened, batch.survey(opened), board=board)
    warnings = [*opened.warnings, *found.warnings]
    results.show_warnings(warnings)
    if json:
        results.show_json({**results.plan_json(found), "warnings": warnings})
    else:
        results.show_plan(found)


@app.command()
def run(
    job: Job,
    workspace: Workspace = Path(),
    limit: Annotated[int | None, typer.Option(min=1, help="Make at most so many images.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Make failed images again.")] = False,
    accept_environment: Annotated[
        bool,
        typer.Option("--accept-environment", help="Restart an image begun under another runtime instead of exit 4."),
    ] = False,
    with_controls: WithControls = False,
    events: Annotated[Path | None, typer.Option(help="Append every event to this file as a JSON line.")] = None,
    backend: Annotated[Literal["auto", "onnx", "rknn"] | None, typer.Option(help="Over the job's backend.")] = None,
    staging: Annotated[Staging | None, typer.Option(help="Over the job's run.staging.")] = None,
    pinned: Annotated[int | None, typer.Option(min=0, help="Over the job's run.pinned.")] = None,
    ahead_mib: Annotated[int | None, typer.Option(min=1, help="Over the job's run.ahead_mib.")] = None,
    min_available_mib: Annotated[int | None, typer.Option(min=0, help="Over the job's run.min_available_mib.")] = None,
    max_swap_growth_mib: Annotated[
        int | None, typer.Option(min=0, help="Over the job's run.max_swap_growth_mib.")
    ] = None,
    interleave: Annotated[
        bool | None, typer.Option("--interleave/--no-interleave", help="Over the job's run.interleave.")
    ] = None,
    core_mask: Annotated[
        Literal["0", "1", "2", "0+1"] | None, typer.Option(help="Over the job's run.core_mask.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=0, help="Over the job's run.threads; 0: all.")] = None,
    recycle: Annotated[int | None, typer.Option(min=0, help="Over the job's run.recycle; 0: never.")] = None,
    keep_latents: Annotated[
        bool | None, typer.Option("--keep-latents/--no-keep-latents", help="Over the job's run.keep_latents.")
    ] = None,
    deadline_seconds: Annotated[float | None, typer.Option(min=1, help="Over the job's run.deadline_seconds.")] = None,
    attest: Annotated[
        Path | None, typer.Option(help="Sign provenance beside each manifest with this ed25519 key (extra `attest`).")
    ] = None,
    c2pa: Annotated[
        Path | None,
        typer.Option(help="Content Credentials in each PNG by this key and its certificates (extra `attest`)."),
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="On the boards of this scheduler, tls://HOST:PORT (extra `fleet`).")
    ] = None,
    tls_ca_file: fleet.TlsCaFile = None,
    tls_cert: fleet.TlsCert = None,
    tls_key: fleet.TlsKey = None,
    json: Json = False,
) -> None:
    """Run a job or go on with it; the same command again does what is left, and nothing when all is done."""
    from anima_batch import runner
    from anima_batch.cli import signatures
    from anima_batch.console import events as progress

    flags = {
        "staging": staging,
        "pinned": pinned,
        "ahead_mib": ahead_mib,
        "min_available_mib": min_available_mib,
        "max_swap_growth_mib": max_swap_growth_mib,
        "interleave": interleave,
        "core_mask": core_mask,
        "threads": threads,
        "recycle": recycle,
        "keep_latents": keep_latents,
        "deadline_seconds": deadline_seconds,
    }
    options = runner.RunOptions(
        run_flags={name: value for name, value in flags.items() if value is not None},
        backend=backend,
        limit=limit,
        retry_failed=retry_failed,
        accept_environment=accept_environment,
        finish_png=signatures.load_finish(c2pa),
        with_controls=with_controls,
    )
    signer = signatures.load_signer(attest)
    make = fleet.load_maker(dask, tls_ca_file, tls_cert, tls_key)
    with runner.catch_stop_signals(progress.show_stopping) as stop:
        running = signatures.attest(runner.run_job(job, workspace, options, stop, make), workspace, signer)
        ended = progress.show_run(running, events, json_result=json)
    raise typer.Exit(ended.exit_code)


@app.command()
def status(job: Job, workspace: Workspace = Path(), with_controls: WithControls = False, json: Json = False) -> None:
    """Show how many images are done, failed, begun (at which step) and waiting."""
    from anima_batch import batch
    from anima_batch.console import results

    opened = batch.open_batch(job, workspace, draw=False, with_controls=with_controls)
    found = batch.plan_batch(opened, batch.survey(opened))
    if json:
        results.show_json(results.plan_json(found))
    else:
        results.show_status(found)


records.add_commands(app)


@app.command()
def doctor(
    job: Annotated[Path | None, typer.Argument(help="A job file (TOML); its needs are checked too.")] = None,
    workspace: Workspace = Path(),
    root: Annotated[Path, typer.Option(help="A copy of another machine's /proc, /sys and /usr/lib.")] = Path("/"),
    json: Json = False,
) -> None:
    """Show what this machine can run, what does not fit together, and the fix."""
    from anima_batch import doctor as examination
    from anima_batch.console import results

    if not root.is_dir():
        raise UsageError(f"--root: must be a folder, got {root}")
    checks = examination.examine(job, workspace, root)
    if json:
        results.show_json({"checks": [results.check_json(check) for check in checks]})
    else:
        results.show_checks(checks)
    raise typer.Exit(examination.exit_code(checks))


@models.command("list")
def list_models(workspace: Workspace = Path(), json: Json = False) -> None:
    """List the model sets of the workspace and the built-in ones."""
    from anima_batch import model_set
    from anima_batch.console import results

    found = model_set.scan_model_sets(workspace)
    if json:
        results.show_json([results.model_set_json(entry) for entry in found.sets])
    else:
        results.show_model_sets(found.sets)
    if found.problems:
        raise ModelSetError(*found.problems)


@models.command("show")
def show_model(name: ModelSetName, workspace: Workspace = Path(), json: Json = False) -> None:
    """Show a model set's dimensions, sources, components and digests."""
    from anima_batch import model_set
    from anima_batch.console import results

    found = model_set.find_model_set(name, workspace)
    if json:
        results.show_json(results.model_set_json(found))
    else:
        results.show_model_set(found)


@models.command("seal")
def seal_model(name: ModelSetName, workspace: Workspace = Path(), json: Json = False) -> None:
    """Record the digests that a model set's files have now, after a change that was meant."""
    from anima_batch import model_set
    from anima_batch.console import results

    sealed = model_set.seal_model_set(model_set.find_model_set(name, workspace))
    if json:
        results.show_json(results.model_set_json(sealed))
    else:
        results.show_line(f"{sealed.folder}: sealed, digest {sealed.digest}")


@models.command("verify")
def verify_model(name: ModelSetName, workspace: Workspace = Path(), json: Json = False) -> None:
    """Read every file of a model set and compare it with both of its digests."""
    from anima_batch import model_set
    from anima_batch.console import results

    found = model_set.find_model_set(name, workspace)
    problems = model_set.verify_model_set(found, sha256=True)
    if json:
        results.show_json({"name": found.name, "digest": found.digest, "ok": not problems, "differences": problems})
    else:
        for line in problems or [f"{found.folder}: ok, digest {found.digest}"]:
            results.show_line(line)
    if problems:
        raise typer.Exit(3)


convert.add_commands(app)
review.add_commands(app)
fleet.add_commands(app)


@app.callback(invoke_without_command=True)
def show_version(
    *, version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False
) -> None:
    """Overnight batches of the Anima text-to-image model on an RK3588 board."""
    if version:
        typer.echo(f"anima-batch {__version__}")
        raise typer.Exit
