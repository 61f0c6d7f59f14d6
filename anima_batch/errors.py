"""Every error that is the user's to mend, each with the exit code that scripts rely on."""

from __future__ import annotations

from collections.abc import Sequence


class AnimaBatchError(Exception):
    """A line for each fault: where, what is wrong, what was got, what is allowed or what to run next.

    Each line is an argument of its own: file names may hold line ends.
    """

    exit_code = 1

    @property
    def lines(self) -> tuple[str, ...]:
        """One a fault."""
        return tuple(map(str, self.args))

    def __str__(self) -> str:
        return "\n".join(self.lines)


class UsageError(AnimaBatchError):
    """A wrong argument or a command that does not fit the state of the workspace."""

    exit_code = 2


class JobError(AnimaBatchError):
    """A bad job file; `problems` lists all of them, one line each."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)


class ModelSetNotFoundError(AnimaBatchError):
    """No model set of that name, path or digest."""

    exit_code = 2


class DifferenceFoundError(AnimaBatchError):
    """Something on disk is not what its record says."""

    exit_code = 3


class ModelSetError(AnimaBatchError):
    """A model set that was found but cannot be used, or does not match its digests."""

    exit_code = 4


class BackendError(AnimaBatchError):
    """A runtime that is missing, refuses a graph or fails while running it."""

    exit_code = 4


class NonFiniteError(BackendError):
    """A runtime was given, or gave, numbers that are no numbers or do not fit."""


class ToolkitError(AnimaBatchError):
    """A conversion toolkit that cannot be set up, refuses a graph or dies of it, with the exit code of its process."""

    exit_code = 4

    def __init__(self, message: str, *, process_exit: int = 1) -> None:
        super().__init__(message)
        self.process_exit = process_exit


class WorkerError(AnimaBatchError):
    """The model's process cannot be started or ended, whatever the image."""

    exit_code = 4


class EnvironmentChangedError(AnimaBatchError):
    """A checkpoint was made by another runtime, driver or NumPy than the one at hand."""

    exit_code = 4


class StorageError(AnimaBatchError):
    """The disk is full, read-only or failing; `errno` is the system's number where there is one."""

    exit_code = 5

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class FolderLockedError(AnimaBatchError):
    """Another runner holds the output folder."""

    exit_code = 6
