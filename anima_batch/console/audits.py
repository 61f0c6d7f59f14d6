"""Audits as they come, so that a folder of many thousand pictures is shown without being kept."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from anima_batch.console.results import audit_json, show_audit, show_json, show_line, show_table
from anima_batch.console.text import printable_json

if TYPE_CHECKING:
    from anima_batch.audit import Audit, ModelSetGroup


def show_audits(audits: Iterable[Audit], *, json: bool) -> bool:
    """Each audit, then how many there were, or one JSON list; returns whether any found a difference."""
    checked = changed = 0
    for audit in audits:
        if json:
            text = textwrap.indent(printable_json(audit_json(audit)), "  ", lambda _: True)
            print(f"{',' if checked else '['}\n{text}", end="")  # noqa: T201
        else:
            show_audit(audit)
        checked += 1
        changed += bool(audit.differences)
    if json:
        print("\n]" if checked else "[]")  # noqa: T201
    else:
        show_line(f"{checked} checked, {changed} changed")
    return changed > 0


def tell_changed(audits: Iterable[Audit]) -> Iterator[Audit]:
    """The same audits; a line for each difference as it passes."""
    for audit in audits:
        for difference in audit.differences:
            show_line(f"DIFFERS: {difference}")
        yield audit


def show_groups(groups: Iterable[ModelSetGroup], *, json: bool) -> None:
    """A row for each model set."""
    if json:
        show_json([asdict(group) for group in groups])
        return
    rows = [
        (
            group.name or "unknown",
            (group.digest or "")[:12],
            group.images,
            group.failed,
            group.changed,
            ", ".join(f"{role} {sha256[:10]}" for role, sha256 in group.weights.items()),
        )
        for group in groups
    ]
    show_table(("model set", "digest", "images", "failed", "changed", "weights"), rows)
