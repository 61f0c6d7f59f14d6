"""The commands that measure, and the one that simulates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anima_batch.cli.arguments import Json, Workspace

bench = typer.Typer(help="Measure what the program itself costs.", no_args_is_help=True, rich_markup_mode=None)


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
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Of ONNX Runtime; 0: all.")] = 0,
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
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Of ONNX Runtime, which is the accelerator then.")] = 1,
    size: Annotated[
        str | None, typer.Option(help="Pixels, WIDTHxHEIGHT; the model set's first size.", show_default=False)
    ] = None,
    blocks: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", show_default=False)] = None,
    pinned: Annotated[int, typer.Option(min=0, help="Sessions that stay open (pinned).")] = 16,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Over all; of each the median is shown.")] = 1,
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
    found = benchmarks.bench_step(
        setup,
        found_set.digest,
        rounds,
        lambda measure: results.show_progress(f"{measure.choice.name}: {measure.seconds:.2f} s"),
    )
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


@bench.command("residency")
def bench_residency(
    model_set: Annotated[str, typer.Option(help="A name or a path.")] = "picture-book",
    workspace: Workspace = Path(),
    backend: Annotated[Literal["auto", "onnx", "rknn"], typer.Option(help="What opens the graphs.")] = "auto",
    pool: Annotated[list[int], typer.Option(help="Graphs that are open at once; repeat for more.")] = [4, 8, 12, 16],  # noqa: B006
    dwell: Annotated[float, typer.Option(min=0, help="Seconds that a pool stays open.")] = 30.0,
    min_available_mib: Annotated[
        int, typer.Option(min=0, max=1 << 20, help="With less memory available it breaks off.")
    ] = 1536,
    max_swap_growth_mib: Annotated[
        int, typer.Option(min=0, max=1 << 20, help="So it does when swap grew by more.")
    ] = 16,
    figure: Annotated[Path | None, typer.Option(help="Draw memory over time and over files as this PNG.")] = None,
    json: Json = False,
) -> None:
    """Measure what open graphs hold in memory, pools of them in fresh processes, and what all of them would."""
    from anima_batch import bench as benchmarks
    from anima_batch.console import benches, results
    from anima_batch.job import RunSpec
    from anima_batch.model_set import find_model_set

    run = RunSpec(min_available_mib=min_available_mib, max_swap_growth_mib=max_swap_growth_mib)
    found_set = find_model_set(model_set, workspace)
    found = []
    for entry in benchmarks.bench_residency(found_set, backend, run, pool, dwell):
        results.show_progress(f"pool of {entry.pool}: {entry.pss_growth / 1e6:+.0f} MB")
        found.append(entry)
    extrapolation = benchmarks.extrapolate(found)
    if figure is not None:
        benchmarks.save_residency(found, extrapolation, figure)
    if json:
        results.show_json(benches.residency_json(found, extrapolation))
    else:
        benches.show_residency(found, extrapolation)


@bench.command("block")
def bench_block(
    fused: Annotated[Path, typer.Argument(help="Made by: anima-batch convert block MODEL_SET FUSED.")],
    model_set: Annotated[
        str, typer.Option(help="A name or a path: the one that FUSED was made from.")
    ] = "picture-book",
    workspace: Workspace = Path(),
    backend: Annotated[Literal["auto", "onnx", "rknn"], typer.Option(help="What runs the graphs.")] = "auto",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Of ONNX Runtime; 0: all.")] = 0,
    size: Annotated[
        str | None, typer.Option(help="Pixels, WIDTHxHEIGHT; the model set's first size.", show_default=False)
    ] = None,
    block: Annotated[int, typer.Option(min=0, help="Which one, from 0.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="To mean over.")] = 3,
    figure: Annotated[Path | None, typer.Option(help="Draw the phases of both forms as this PNG.")] = None,
    json: Json = False,
) -> None:
    """Measure a block as three graphs beside the same block as one: load, init, run, release, host, memory."""
    from anima_batch import bench as benchmarks
    from anima_batch.console import benches, results
    from anima_batch.job import RunSpec
    from anima_batch.model_set import find_model_set

    found_set = find_model_set(model_set, workspace)
    setup = benchmarks.make_setup(found_set, backend, RunSpec(threads=threads), size, None)
    found = benchmarks.bench_block(setup, fused, block, rounds)
    if figure is not None:
        benchmarks.save_block(found, figure)
    if json:
        results.show_json(benches.block_json(found))
    else:
        benches.show_block(found)


@bench.command("decode")
def bench_decode(
    model_set: Annotated[str, typer.Option(help="A name or a path.")] = "picture-book",
    workspace: Workspace = Path(),
    size: Annotated[
        str | None, typer.Option(help="Pixels, WIDTHxHEIGHT; the model set's first size.", show_default=False)
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(min=0, max=1024, help="Of ONNX Runtime, 0: all; repeat for more. All otherwise."),
    ] = None,
    tile: Annotated[
        list[int] | None,
        typer.Option(help="Latent pixels, beside the whole; repeat for more. A half and a quarter otherwise."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="After the first, for the median.")] = 3,
    figure: Annotated[Path | None, typer.Option(help="Draw time over memory as this PNG.")] = None,
    json: Json = False,
) -> None:
    """Measure decoding whole and in tiles: time, memory, PSNR and SSIM from the whole, and what fits here.

    `run` looks at what was measured here before it begins.
    """
    from anima_batch import bench as benchmarks
    from anima_batch.batch import write_needs
    from anima_batch.console import benches, results
    from anima_batch.environment import available_bytes
    from anima_batch.model_set import find_model_set

    found_set = find_model_set(model_set, workspace)
    setup = benchmarks.make_decode_setup(found_set, size, rounds)
    available, found = available_bytes(), []
    for entry in benchmarks.bench_decode(setup, threads or [0], tile or benchmarks.list_tiles(setup)):
        results.show_progress(f"{entry.decoding.how}: {entry.decoding.seconds:.2f} s")
        found.append(entry)
    write_needs(workspace, found_set.digest, benchmarks.list_needs(setup, found))
    chosen = benchmarks.choose_decoding(found, available)
    if figure is not None:
        benchmarks.save_decode(found, figure)
    if json:
        results.show_json(benches.decode_json(found, chosen, available))
    else:
        benches.show_decode(found, chosen, available)


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
