"""The commands that make model sets, from official weights and on for the NPU, and judge the NPU's toolkits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from anima_batch.cli.arguments import Json, ModelSetName, Workspace, need_extra
from anima_batch.errors import UsageError

ToolkitVersion = Literal["2.3.2", "2.3.0", "2.5.0"]
Toolkits = Annotated[
    Path | None, typer.Option(help="Where toolkit environments lie or are made; a cache of the user's otherwise.")
]


def add_commands(app: typer.Typer) -> None:
    """Put the commands of this module where they belong."""
    app.command("convert")(convert)
    app.command("convert --from")(convert_from)
    app.command("convert block")(convert_block)
    app.command("convert report")(convert_report)
    app.command("convert verify")(verify)


def convert(
    out: Annotated[Path, typer.Argument(help="The model set's folder, such as models/anima; must not exist.")],
    transformer: Annotated[Path, typer.Option(help="The diffusion model with its adapter (.safetensors).")],
    text_encoder: Annotated[Path, typer.Option(help="Qwen3 (.safetensors).")],
    vae: Annotated[Path, typer.Option(help="The Qwen-Image VAE in Wan naming (.safetensors).")],
    qwen_tokenizer: Annotated[
        Path, typer.Option(help="tokenizer.json, or a folder with it or with vocab.json and merges.txt.")
    ],
    t5_tokenizer: Annotated[Path, typer.Option(help="tokenizer.json, or a folder with it.")],
    license: Annotated[str, typer.Option(help="The weights' licence, as it shall stand in every manifest.")],  # noqa: A002
    size: Annotated[
        list[str], typer.Option(help="A picture size, WIDTHxHEIGHT; repeat for more, the default first.")
    ] = ["512x512"],  # noqa: B006
    context_rows: Annotated[int, typer.Option(min=1, help="Rows of the text context.")] = 512,
    latent_mean: Annotated[
        str | None, typer.Option(help="16 numbers with commas; the official ones otherwise.")
    ] = None,
    latent_std: Annotated[str | None, typer.Option(help="16 numbers with commas; the official ones otherwise.")] = None,
    empty_prompt: Annotated[
        Literal["token", "masked"], typer.Option(help="As ComfyUI (token), or as in training and Diffusers (masked).")
    ] = "token",
    empty_token_id: Annotated[int, typer.Option(min=0, help="Qwen's token for an empty prompt.")] = 151643,
    vae_tile: Annotated[int | None, typer.Option(min=4, help="Decode in tiles of so many latent pixels.")] = None,
    dtype: Annotated[
        Literal["auto", "fp16", "fp32"], typer.Option(help="Of the stored weights; auto: as wide as the source.")
    ] = "auto",
    json: Json = False,
) -> None:
    """Make a model set of ONNX graphs from the official weights (needs the extra `convert`)."""
    # Long for its options alone: each is an argument with its help.
    from anima_batch.console import results

    with need_extra("convert", "convert"):
        from anima_batch.convert import arguments, build

    options = build.ConvertOptions(
        transformer=transformer,
        text_encoder=text_encoder,
        vae=vae,
        qwen_tokenizer=qwen_tokenizer,
        t5_tokenizer=t5_tokenizer,
        out=out,
        name=out.name,
        license=license,
        sizes=arguments.parse_sizes(size),
        context_rows=context_rows,
        latent_mean=arguments.parse_statistics("--latent-mean", latent_mean),
        latent_std=arguments.parse_statistics("--latent-std", latent_std),
        empty_prompt=empty_prompt,
        empty_token_id=empty_token_id,
        vae_tile=vae_tile,
        dtype=dtype,
    )
    made = build.convert_model_set(options, results.show_progress)
    if json:
        results.show_json(results.model_set_json(made))
    else:
        results.show_line(f"{made.folder}: digest {made.digest}")


def convert_from(
    out: Annotated[Path, typer.Argument(help="The new model set's folder, such as models/anima-npu; must not exist.")],
    source: Annotated[str, typer.Option("--from", help="A model set of ONNX graphs: a name in models/, or a path.")],
    target: Annotated[Literal["rk3588"], typer.Option(help="The chip; the RK3588S has the same NPU.")],
    toolkit: Annotated[ToolkitVersion, typer.Option(help="Of rknn-toolkit2; it is set up where it is missing.")],
    size: Annotated[
        str | None,
        typer.Option(help="WIDTHxHEIGHT, one of the set's sizes: graphs are for so many tokens; its first otherwise."),
    ] = None,
    mlp: Annotated[
        Literal["fp16", "w8a8"], typer.Option(help="w8a8: MLPs in int8, calibrated on pictures; see convert verify.")
    ] = "fp16",
    prompt: Annotated[list[str] | None, typer.Option(help="Of a picture for w8a8; repeat for more.")] = None,
    toolkits: Toolkits = None,
    workspace: Workspace = Path(),
    json: Json = False,
) -> None:
    """Make a model set for the NPU from one of ONNX graphs; goes on where it was interrupted."""
    from anima_batch.console import results
    from anima_batch.model_set import find_model_set

    with need_extra("convert", "convert"):
        from anima_batch.convert import arguments
        from anima_batch.convert.rknn import calibration, conversion
        from anima_batch.convert.rknn.toolkit import open_toolkit
    model_set = find_model_set(source, workspace)
    wanted = arguments.parse_sizes([size])[0] if size else None
    sizes = conversion.check_options(model_set, out, wanted)  # before a toolkit is set up for it
    if prompt and mlp != "w8a8":
        raise UsageError("--prompt: is of the pictures that --mlp w8a8 is calibrated on: give both or neither")
    pictures = calibration.Pictures(sizes[0], prompt or calibration.PROMPTS) if mlp == "w8a8" else None
    opened = open_toolkit(toolkit, toolkits, results.show_progress)
    options = conversion.RknnOptions(model_set, out, opened, wanted, pictures)
    made = conversion.convert_to_rknn(options, results.show_progress)
    if json:
        results.show_json(conversion.conversion_json(made) | {"model_set": results.model_set_json(made.model_set)})
    else:
        results.show_line(conversion.summarise(made))


def convert_block(
    model_set: ModelSetName,
    out: Annotated[Path, typer.Argument(help="The graph's file: .onnx, or .rknn for the board.", show_default=False)],
    block: Annotated[int, typer.Option(min=0, help="Which one, from 0.")] = 0,
    toolkit: Annotated[
        ToolkitVersion | None, typer.Option(help="Of rknn-toolkit2, for .rknn.", show_default=False)
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="WIDTHxHEIGHT, for .rknn: one of the set's sizes; its first otherwise.")
    ] = None,
    toolkits: Toolkits = None,
    workspace: Workspace = Path(),
) -> None:
    """Make one graph of a block's three, from a set of ONNX graphs; then: anima-batch bench block OUT."""
    from anima_batch.console import results
    from anima_batch.model_set import find_model_set

    if (out.suffix == ".rknn") != (toolkit is not None) or out.suffix not in (".onnx", ".rknn"):
        given = "no --toolkit" if toolkit is None else f"--toolkit {toolkit}"
        raise UsageError(f"convert block: OUT must be a .onnx file, or a .rknn file with --toolkit, got {out}, {given}")
    with need_extra("convert block", "convert"):
        from anima_batch.convert import arguments
        from anima_batch.convert.rknn import fused
        from anima_batch.convert.rknn.toolkit import open_toolkit

    found = find_model_set(model_set, workspace)
    graph = fused.fuse_block(found, block)
    if toolkit is None:
        fused.save_block(graph, out)
    else:
        opened = open_toolkit(toolkit, toolkits, results.show_progress)
        fused.compile_block(graph, found, arguments.parse_sizes([size])[0] if size else None, opened, out)
    results.show_line(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


def convert_report(
    toolkit: Annotated[
        list[str] | None,
        typer.Option(help="A version of rknn-toolkit2: 2.3.0, 2.3.2 or 2.5.0; repeat for more. All otherwise."),
    ] = None,
    full_size: Annotated[
        bool, typer.Option("--full-size", help="The official model's dimensions at 512x512 instead of tiny ones.")
    ] = False,
    toolkits: Toolkits = None,
    json: Json = False,
) -> None:
    """Show what each version of rknn-toolkit2 makes of one block: exit code, time, memory, size, accuracy."""
    import tempfile
    from dataclasses import asdict

    from anima_batch.console import conversion, results

    with need_extra("convert", "convert"):
        from anima_batch.convert.rknn import report
        from anima_batch.convert.rknn.toolkit import TOOLKITS, open_toolkit
    opened = [open_toolkit(version, toolkits, results.show_progress) for version in dict.fromkeys(toolkit or TOOLKITS)]
    with tempfile.TemporaryDirectory() as scratch:
        rows = report.report_toolkits(opened, Path(scratch), results.show_progress, full_size=full_size)
    notes = list(report.summarise(rows, full_size=full_size))
    if json:
        results.show_json({"full_size": full_size, "rows": [asdict(row) for row in rows], "notes": notes})
    else:
        conversion.show_toolkit_report(rows, notes)


def verify(
    model_set: ModelSetName,
    toolkit: Annotated[ToolkitVersion, typer.Option(help="Of rknn-toolkit2; it is set up where it is missing.")] = (
        "2.3.2"
    ),
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT, one of the set's sizes; its first otherwise.")] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="Only so many blocks, and no pictures; all of them otherwise.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, max=200, help="Of the trajectory that inputs are taken from.")] = 20,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Of a picture; repeat for more. Blocks are compared on the first.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the noise.")] = 20260812,
    mlp: Annotated[Literal["fp16", "w8a8"], typer.Option(help="w8a8: MLPs in int8, calibrated on the way.")] = "fp16",
    diffusers: Annotated[
        Path | None, typer.Option(help="The official transformer (.safetensors), to compare with torch as well.")
    ] = None,
    toolkits: Toolkits = None,
    workspace: Workspace = Path(),
    json: Json = False,
) -> None:
    """Compare a set's ONNX graphs with what the NPU's compiler makes of them, in its simulator, and with torch."""
    from anima_batch.console import results
    from anima_batch.model_set import find_model_set

    with need_extra("convert", "convert"):
        from anima_batch.console import verification as shown
        from anima_batch.convert import arguments
        from anima_batch.convert.rknn import calibration, verification

    found = find_model_set(model_set, workspace)
    wanted = arguments.parse_sizes([size])[0] if size else found.description.sizes[0]
    pictures = calibration.Pictures(wanted, prompt or calibration.PROMPTS, seed, steps)
    options = verification.VerifyOptions(found, toolkit, toolkits, pictures, blocks, mlp, diffusers)
    done = verification.verify_conversion(options, results.show_progress)
    if json:
        results.show_json(shown.verification_json(done))
    else:
        shown.show_verification(done)
    if not done.good:
        raise typer.Exit(3)
