"""One line of an examination, and the exit code of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from anima_batch.errors import BackendError, StorageError

Status = Literal["ok", "warn", "fail"]

STORAGE_CHECKS = ("file_system", "free_space")
WITH_ROOT = "sudo -E env PATH=$PATH anima-batch doctor"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, what is allowed, and how to mend it; `fix` is None only where all is well.

    "fail": a job does not run, or loses what this program promises to keep. "warn": it runs, but slowly, or untried, or
    it could not be told.
    """

    name: str
    status: Status
    found: str
    allowed: str
    fix: str | None = None


def make_check(name: str, status: Status, found: str, allowed: str, fix: str) -> Check:
    """The check, with its fix where one is needed."""
    return Check(name, status, found, allowed, None if status == "ok" else fix)


def exit_code(checks: Iterable[Check]) -> int:
    """0 where nothing fails, 5 where only the storage does, 4 otherwise."""
    failed = {check.name for check in checks if check.status == "fail"}
    if not failed:
        return 0
    return StorageError.exit_code if failed <= set(STORAGE_CHECKS) else BackendError.exit_code


def unreadable(name: str, reading: str, allowed: str, *, denied: bool) -> Check:
    """The check that could not be made; as root it can, where the permission is what lacks."""
    fix = WITH_ROOT if denied else "look at it by hand, as root"
    return Check(name, "warn", reading, allowed, fix)


def min_status(left: Status, right: Status) -> Status:
    """The milder of two: nothing is worse than what depends on it."""
    order: tuple[Status, ...] = ("ok", "warn", "fail")
    return order[min(order.index(left), order.index(right))]
