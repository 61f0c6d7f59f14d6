"""Arguments that several commands share, and how a command of two words is found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

Job = Annotated[Path, typer.Argument(help="A job file (TOML).", show_default=False)]
Workspace = Annotated[Path, typer.Option(help="The folder with jobs/, models/, manifests/ and outputs/.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
ModelSetName = Annotated[str, typer.Argument(help="A name in models/, a built-in one, or a path.", show_default=False)]


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
