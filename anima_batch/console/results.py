"""Results on stdout, as tables or JSON; errors and warnings on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from anima_batch.console.text import format_seconds, printable, printable_json, shorten

if TYPE_CHECKING:  # what is shown was made by whoever calls; a plan must not wait for the runtimes to be imported
    from anima_batch.audit import Audit
    from anima_batch.bench import CheckpointCost
    from anima_batch.doctor import Check
    from anima_batch.model_set import ModelSet
    from anima_batch.plan import Plan, PlannedImage

ROWS_SHOWN = 20  # of a plan; --json has all


def show_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """One JSON document on stdout."""
    print(printable_json(value))  # noqa: T201


def show_errors(lines: Iterable[str]) -> None:
    """One line each on stderr, whatever the names in them."""
    for line in lines:
        print(f"error: {printable(shorten(line))}", file=sys.stderr)  # noqa: T201


def show_warnings(warnings: Iterable[str]) -> None:
    """One line each on stderr."""
    for line in warnings:
        print(f"warning: {printable(line)}", file=sys.stderr)  # noqa: T201


def show_line(message: str) -> None:
    """A result of one line."""
    print(printable(message))  # noqa: T201


def show_progress(message: str) -> None:
    """One line of progress on stderr."""
    print(printable(message), file=sys.stderr, flush=True)  # noqa: T201


def show_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table without lines, as wide as the terminal; elsewhere a row is a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=not sys.stdout.isatty(), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(shorten(str(cell)))) for cell in row))
    Console(file=sys.stdout, width=None if sys.stdout.isatty() else 400).print(table)


def planned_json(planned: PlannedImage) -> dict[str, Any]:
    """One row of `plan --json`."""
    return {
        "request_id": planned.request_id or None,
        "stem": planned.stem if planned.request_id else None,
        "action": planned.action,
        "status": planned.status,
        "from_step": planned.from_step,
        "steps": planned.image.request.steps,
        "passes": planned.passes,
        "estimated_seconds": planned.estimated_seconds,
        "reason": planned.reason,
    }


def plan_json(plan: Plan) -> dict[str, Any]:
    """The whole plan."""
    return {
        "images": [planned_json(planned) for planned in plan.images],
        "done": plan.count("done"),
        "failed": plan.count("failed"),
        "begun": plan.count("begun"),
        "waiting": plan.count("waiting"),
        "pending": len(plan.pending),
        "passes": plan.passes,
        "estimated_seconds": plan.estimated_seconds,
        "simulated": plan.simulated,
        "disk_bytes": plan.disk_bytes,
    }


def show_plan(plan: Plan) -> None:
    """The first images as a table, then the sums."""
    rows = [
        (
            planned.action,
            planned.stem if planned.request_id else f"{planned.image.policy_name}, random seed",
            f"{planned.from_step}/{planned.image.request.steps}",
            planned.passes,
            format_seconds(planned.estimated_seconds),
            planned.reason,
        )
        for planned in plan.images[:ROWS_SHOWN]
    ]
    show_table(("action", "image", "steps", "passes", "ETA", "why"), rows)
    if len(plan.images) > ROWS_SHOWN:
        show_line(f"... and {len(plan.images) - ROWS_SHOWN} more: --json lists all")
    show_line(summarise_plan(plan))


def summarise_plan(plan: Plan) -> str:
    """What a run would cost, in one line."""
    done, failed, begun = (plan.count(status) for status in ("done", "failed", "begun"))
    origin = " (simulated)" if plan.simulated else ""
    return (
        f"{len(plan.images)} images: {len(plan.pending)} to make ({begun} begun), {done} done, {failed} failed; "
        f"{plan.passes} transformer passes, ETA {format_seconds(plan.estimated_seconds)}{origin}, "
        f"up to {plan.disk_bytes / 1e6:.1f} MB"
    )


def show_status(plan: Plan) -> None:
    """What has more to say than done or waiting, then the sums."""
    rows = [
        (planned.status, planned.stem, f"{planned.from_step}/{planned.image.request.steps}", planned.reason)
        for planned in plan.images
        if planned.status in ("begun", "failed") or planned.reason
    ]
    if rows:
        show_table(("status", "image", "steps", "why"), rows)
    show_line(", ".join(f"{plan.count(status)} {status}" for status in ("done", "failed", "begun", "waiting")))


def audit_json(audit: Audit) -> dict[str, Any]:
    """One audit."""
    return {
        "path": str(audit.path),
        "ok": not audit.differences,
        "differences": list(audit.differences),
        "notes": list(audit.notes),
        **audit.facts,
    }


def show_audit(audit: Audit) -> None:
    """The facts of one file, then what differs."""
    show_line(f"{audit.path}: {'changed' if audit.differences else 'ok'}")
    for key, value in audit.facts.items():
        for name, text in _flatten(key, value):
            show_line(f"  {name}: {text}")
    for note in audit.notes:
        show_line(f"  not checked: {note}")
    for difference in audit.differences:
        show_line(f"  DIFFERS: {difference}")


def _flatten(key: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        shown = {name: text for name, text in value.items() if text is not None}
        nested = {name for name, text in shown.items() if isinstance(text, Mapping)}
        flat = (f"{name} {_format_value(text)}" for name, text in shown.items() if name not in nested)
        yield key, ", ".join(flat)
        for name in sorted(nested):
            yield from _flatten(f"{key}.{name}", shown[name])
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for index, entry in enumerate(value):
            yield from _flatten(f"{key}[{index}]", entry)
    elif value not in (None, [], ""):
        yield key, _format_value(value)


def _format_value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value) or '""'


def model_set_json(model_set: ModelSet) -> dict[str, Any]:
    """A model set, whole."""
    return {
        "folder": str(model_set.folder),
        "digest": model_set.digest,
        **model_set.description.model_dump(mode="json"),
    }


def show_model_sets(model_sets: Sequence[ModelSet]) -> None:
    """One row each."""
    rows = [
        (
            entry.folder.name,
            entry.digest[:12],
            entry.description.transformer.blocks,
            " ".join(f"{width}x{height}" for width, height in entry.description.sizes),
            f"{sum(part.bytes for part in entry.description.components) / 1e6:.1f}",
            entry.description.license,
        )
        for entry in model_sets
    ]
    show_table(("name", "digest", "blocks", "sizes", "MB", "license"), rows)


def show_model_set(model_set: ModelSet) -> None:
    """Everything but the list of components, which is summed up."""
    description = model_set.description
    show_line(f"{description.name}: {model_set.folder}")
    facts = {"digest": model_set.digest, **description.model_dump(exclude={"components", "name"})}
    for key, value in facts.items():
        for name, text in _flatten(key, list(value) if isinstance(value, tuple) else value):
            show_line(f"  {name}: {text}")
    rows = [(part.role, part.path, part.bytes, part.xxh3_128) for part in description.components]
    show_table(("role", "path", "bytes", "xxh3_128"), rows)


def show_checkpoint_costs(costs: Sequence[CheckpointCost]) -> None:
    """One row a kind of history, in milliseconds."""
    rows = [
        (
            cost.policy,
            f"{cost.sampler_ms_median:.1f}",
            f"{cost.save_ms_median:.1f}",
            f"{cost.step_ms_median:.1f}",
            f"{cost.step_ms_max:.1f}",
        )
        for cost in costs
    ]
    show_table(("history", "sampler ms", "save ms", "step ms, median", "step ms, max"), rows)


def check_json(check: Check) -> dict[str, Any]:
    """One line of an examination."""
    return asdict(check)


def show_checks(checks: Sequence[Check]) -> None:
    """One row each, then the fixes on lines of their own: a command that a cell folds cannot be copied."""
    show_table(("status", "check", "found", "allowed"), ((c.status, c.name, c.found, c.allowed) for c in checks))
    for check in checks:
        if check.fix:
            show_line(f"to mend {check.name}: {shorten(check.fix)}")
    counts = {status: sum(check.status == status for check in checks) for status in ("ok", "warn", "fail")}
    show_line(", ".join(f"{count} {status}" for status, count in counts.items()))
