"""The command line: parses arguments and picks an exit code."""

from anima_batch.cli.commands import app
from anima_batch.cli.process import main

__all__ = ["app", "main"]
