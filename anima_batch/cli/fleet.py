"""What of `run` needs the extra `fleet`, and a board's own command."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anima_batch.cli.arguments import Workspace, need_extra
from anima_batch.errors import UsageError

if TYPE_CHECKING:
    from anima_batch.runner.walk import Maker

TlsCaFile = Annotated[Path | None, typer.Option(help="The authority that signed the fleet's certificates (PEM).")]
TlsCert = Annotated[Path | None, typer.Option(help="This machine's certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(help="Its key (PEM).")]


def load_maker(address: str | None, ca_file: Path | None, cert: Path | None, key: Path | None) -> Maker:
    """What makes a job's images: this machine, or the boards of a scheduler; raises UsageError."""
    if address is None:
        if files := [str(path) for path in (ca_file, cert, key) if path]:
            raise UsageError(f"--tls-ca-file, --tls-cert, --tls-key: must go with --dask, got {', '.join(files)}")
        from anima_batch.runner import make_here

        return make_here
    with need_extra("--dask", "fleet"):
        from anima_batch import fleet
    return functools.partial(fleet.make_on_fleet, connection=fleet.Connection(address, ca_file, cert, key))


def serve(
    address: Annotated[str, typer.Argument(help="The scheduler: tls://HOST:PORT.", show_default=False)],
    workspace: Workspace = Path(),
    name: Annotated[str | None, typer.Option(help="What manifests call this board; else its host name.")] = None,
    tls_ca_file: TlsCaFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Make images for jobs that run with --dask, until stopped; waits for the scheduler where there is none."""
    with need_extra("fleet-worker", "fleet"):
        from anima_batch import fleet
    from anima_batch.console import results

    connection = fleet.Connection(address, tls_ca_file, tls_cert, tls_key)
    number = fleet.serve_board(connection, workspace, name, results.show_progress)
    raise typer.Exit(128 + number)


def add_commands(app: typer.Typer) -> None:
    """`fleet-worker`."""
    app.command("fleet-worker")(serve)
