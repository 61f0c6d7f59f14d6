"""The command line: parses arguments and picks an exit code.

Modules are imported in the commands that need them, so that --help answers at once.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn, TextIO

import typer

from anima_batch import __version__, cli_convert
from anima_batch.cli_arguments import Job, Json, ModelSetName, TwoWordGroup, Workspace
from anima_batch.errors import AnimaBatchError, ModelSetError, StorageError, UsageError

if TYPE_CHECKING:
    from anima_batch.audit import Audit

app = typer.Typer(
    cls=TwoWordGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
models = typer.Typer(help="Model sets, their digests and licences.", no_args_is_help=True, rich_markup_mode=None)
bench = typer.Typer(help="Measure what the program itself costs.", no_args_is_help=True, rich_markup_mode=None)
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
    json: Json = False,
) -> None:
    """Show what a run would do, how long it takes and how much disk it needs; writes nothing."""
    from anima_batch import batch
    from anima_batch.console import results

    opened = batch.open_batch(job, workspace, draw=False)
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
    deadline_seconds: Annotated[float | None, typer.Option(min=1, help="Over the job's run.deadline_seconds.")] = None,
    json: Json = False,
) -> None:
    """Run a job or go on with it; the same command again does what is left, and nothing when all is done."""
    from anima_batch import runner
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
        "deadline_seconds": deadline_seconds,
    }
    options = runner.RunOptions(
        run_flags={name: value for name, value in flags.items() if value is not None},
        backend=backend,
        limit=limit,
        retry_failed=retry_failed,
        accept_environment=accept_environment,
    )
    with runner.catch_stop_signals(progress.show_stopping) as stop:
        ended = progress.show_run(runner.run_job(job, workspace, options, stop), events, json_result=json)
    raise typer.Exit(ended.exit_code)


@app.command()
def status(job: Job, workspace: Workspace = Path(), json: Json = False) -> None:
    """Show how many images are done, failed, begun (at which step) and waiting."""
    from anima_batch import batch
    from anima_batch.console import results

    opened = batch.open_batch(job, workspace, draw=False)
    found = batch.plan_batch(opened, batch.survey(opened))
    if json:
        results.show_json(results.plan_json(found))
    else:
        results.show_status(found)


@app.command()
def audit(
    paths: Annotated[list[Path], typer.Argument(help="PNGs, manifests or folders.", show_default=False)],
    workspace: Workspace = Path(),
    json: Json = False,
) -> None:
    """Tell which model set, weights, versions, seed and policy made a picture; every digest is checked."""
    from anima_batch.audit import audit_paths

    _show_audits(list(audit_paths(paths, workspace)), json=json)


@app.command()
def verify(job: Job, workspace: Workspace = Path(), json: Json = False) -> None:
    """Check every finished image and every checkpoint of a job."""
    from anima_batch.audit import verify_job
    from anima_batch.batch import open_batch

    _show_audits(list(verify_job(open_batch(job, workspace, draw=False))), json=json)


def _show_audits(audits: list[Audit], *, json: bool) -> None:
    from anima_batch.console import results

    if json:
        results.show_json([results.audit_json(entry) for entry in audits])
    else:
        for entry in audits:
            results.show_audit(entry)
        results.show_line(f"{len(audits)} checked, {sum(bool(entry.differences) for entry in audits)} changed")
    if any(entry.differences for entry in audits):
        raise typer.Exit(3)


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


cli_convert.add_commands(app)


@bench.command("checkpoint")
def bench_checkpoint(
    workspace: Workspace = Path(),
    width: Annotated[int, typer.Option(min=16, help="Pixels.")] = 512,
    height: Annotated[int, typer.Option(min=16, help="Pixels.")] = 512,
    steps: Annotated[int, typer.Option(min=1, max=200, help="Steps to measure.")] = 20,
    json: Json = False,
) -> None:
    """Measure a step's cost beside the model: sampler, digests and checkpoint, on the workspace's disk."""
    from dataclasses import asdict

    from anima_batch import bench as benchmarks
    from anima_batch.console import results

    costs = list(benchmarks.bench_checkpoint(workspace / "outputs", width, height, steps))
    if json:
        results.show_json([asdict(cost) for cost in costs])
    else:
        results.show_checkpoint_costs(costs)


@bench.command("lifecycle")
def bench_lifecycle(
    model_set: Annotated[str, typer.Option(help="A name or a path.")] = "picture-book",
    workspace: Workspace = Path(),
    backend: Annotated[Literal["auto", "onnx", "rknn"], typer.Option(help="What opens the graphs.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="Of ONNX Runtime; 0: all.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Over all graphs, to mean over.")] = 3,
    json: Json = False,
) -> None:
    """Measure loading, initialising and releasing the transformer's graphs, and what a pass takes for it."""
    from anima_batch import bench as benchmarks
    from anima_batch.console import results, steps
    from anima_batch.job import RunSpec
    from anima_batch.model_set import find_model_set

    found = benchmarks.bench_lifecycle(find_model_set(model_set, workspace), backend, RunSpec(threads=threads), rounds)
    if json:
        results.show_json(steps.lifecycle_json(found))
    else:
        steps.show_lifecycle(found)


@bench.command("step")
def bench_step(
    model_set: Annotated[str, typer.Option(help="A name or a path.")] = "picture-book",
    workspace: Workspace = Path(),
    backend: Annotated[Literal["auto", "onnx", "rknn"], typer.Option(help="What runs the graphs.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Of ONNX Runtime, which is the accelerator then.")] = 1,
    size: Annotated[
        str | None, typer.Option(help="Pixels, WIDTHxHEIGHT; the model set's first size.", show_default=False)
    ] = None,
    blocks: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", show_default=False)] = None,
    pinned: Annotated[int, typer.Option(min=0, help="Sessions that stay open (pinned).")] = 16,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Where the timing table goes, as JSON; unless --blocks is given, to where `plan` looks for it.",
            show_default=False,
        ),
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw each step's timeline as this PNG.")] = None,
    json: Json = False,
) -> None:
    """Measure a step with guidance under every staging and order, beside what the simulation predicts."""
    from anima_batch import bench as benchmarks
    from anima_batch.batch.outlook import measured_table_path
    from anima_batch.console import results, steps
    from anima_batch.files import make_folder, write_atomic
    from anima_batch.job import RunSpec
    from anima_batch.model_set import find_model_set

    found_set = find_model_set(model_set, workspace)
    setup = benchmarks.make_setup(found_set, backend, RunSpec(threads=threads, pinned=pinned), size, blocks)
    found = []
    for entry in benchmarks.bench_step(setup, found_set.digest):
        results.show_progress(f"{entry.measure.choice.name}: {entry.measure.seconds:.2f} s")
        found.append(entry)
    if table is None and blocks is None:
        table = measured_table_path(workspace, found_set.digest, found[0].table.backend)
        make_folder(table.parent)
    if table is not None:
        write_atomic(table, found[0].table.model_dump_json(indent=2).encode())
    if figure is not None:
        benchmarks.save_measures([entry.measure for entry in found], figure)
    if json:
        results.show_json(steps.steps_json(found))
    else:
        steps.show_steps(found)


@bench.command("simulate")
def bench_simulate(
    board: Annotated[
        str, typer.Option("--board", "--table", help="A built-in timing table, or the file of a measured one.")
    ] = "rock-5c",
    steps: Annotated[int, typer.Option(min=1, max=200, help="Steps of the image.")] = 20,
    policy: Annotated[Literal["full", "spectrum"], typer.Option(help="Which steps are computed.")] = "full",
    staging: Annotated[
        Literal["on-demand", "ahead", "pinned", "resident", "cached"] | None,
        typer.Option(help="This one alone, with what it rests on; all choices otherwise."),
    ] = None,
    interleave: Annotated[
        bool | None,
        typer.Option("--interleave/--no-interleave", help="CFG streams in turn; on demand this is off otherwise."),
    ] = None,
    cores: Annotated[int, typer.Option(min=1, help="Accelerator cores; 2: attention on one, mlp on the other.")] = 1,
    pinned: Annotated[int, typer.Option(min=0, help="Sessions that stay open (pinned, cached).")] = 16,
    figure: Annotated[Path | None, typer.Option(help="Draw a step's timeline as this PNG.")] = None,
    json: Json = False,
) -> None:
    """Simulate the denoising of an image from a timing table: staging, interleaving, cores."""
    from anima_batch import board as boards
    from anima_batch.board import picture
    from anima_batch.console import simulations
    from anima_batch.job import ImageRequest, built_in_policies
    from anima_batch.sampling import planned_passes

    table = boards.load_table(board)
    asked = built_in_policies()[policy]
    request = ImageRequest(prompt="", seed=0, width=table.width, height=table.height, steps=steps, policy=asked)
    passes = planned_passes(request)
    choices = boards.list_choices(table, pinned)
    if staging is not None:
        choices = [boards.make_choice(table, staging, interleave=interleave, cores=cores, pinned=pinned)]
    found = [boards.simulate(table, passes, choice) for choice in choices]
    if figure is not None:
        picture.save_simulations(found, figure)
    weighed = list(boards.weigh_assumptions(found[0])) if staging is not None else []
    simulations.show(found, policy, weighed, json=json)


@app.callback(invoke_without_command=True)
def show_version(
    *, version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False
) -> None:
    """Overnight batches of the Anima text-to-image model on an RK3588 board."""
    if version:
        typer.echo(f"anima-batch {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line; a user's mistake is one line on stderr and its exit code."""
    signal.signal(signal.SIGINT, lambda *_: sys.exit(128 + signal.SIGINT))  # `run` has its own while it runs
    sys.stdout = _open_stream(sys.stdout)
    sys.stderr = _open_stream(sys.stderr)
    try:
        code = _call()
        sys.stdout.flush()
    except OSError as error:
        code = _report_os_error(error)
    sys.exit(code)


def _open_stream(stream: TextIO | None) -> TextIO:
    """The stream, able to show any name; nothing where it was closed before the start."""
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return stream


def _call() -> int:
    try:
        app()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except AnimaBatchError as error:
        from anima_batch.console import results

        results.show_errors(error.lines)
        return error.exit_code
    return 0


def _report_os_error(error: OSError) -> int:
    """What the system refused outside the files that a command looks after: a broken pipe, a name that is too long."""
    if error.errno == errno.EPIPE:  # whoever read stdout has seen enough; what is left in the buffer has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    from anima_batch.console import results

    results.show_errors([f"{error.filename or 'stdout'}: {error.strerror or error}"])
    return UsageError.exit_code if error.errno == errno.ENAMETOOLONG else StorageError.exit_code
