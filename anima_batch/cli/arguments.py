"""Arguments that several commands share, and how a command of two words is found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from anima_batch.errors import UsageError

Job = Annotated[Path, typer.Argument(help="A job file (TOML).", show_default=False)]
Workspace = Annotated[Path, typer.Option(help="The folder with jobs/, models/, manifests/ and outputs/.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ModelSetName = Annotated[str, typer.Argument(help="A name in models/, a built-in one, or a path.", show_default=False)]

WithControls = Annotated[
    bool,
    typer.Option("--with-controls", help="And plain sampling of equal passes for each image under a policy."),
]
MIN_PSNR_DB = 31.444  # what the published tiled decoder has from the whole one: differences that nobody minded
MinPsnr = Annotated[float, typer.Option(min=0, max=1000, help="Flag pictures with less PSNR (dB) to their twin.")]


@contextlib.contextmanager
def need_extra(command: str, extra: str) -> Iterator[None]:
    """What the block imports belongs to an extra; raises UsageError without it."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{command}: {error.name} is missing: pip install 'anima-batch[{extra}]'") from error


class TwoWordGroup(TyperGroup):
    """Commands may have two words: `convert report` stands beside `convert OUT`, which stays as it is.

    Where the second word is an option, a command line with it anywhere is meant.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's types, or typer's own of them
        """The command that is meant, and its arguments."""
        first, *rest = args
        for word in rest:
            name = f"{first} {word.partition('=')[0]}"
            if name in self.commands and word.startswith("--"):
                return name, self.commands[name], rest
        name = " ".join(args[:2])
        if name in self.commands:
            return name, self.commands[name], args[2:]
        return super().resolve_command(ctx, args)
