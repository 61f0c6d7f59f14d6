"""The only place that draws: results on stdout, progress and errors on stderr, events as JSON lines."""

from anima_batch.console.events import show_run, show_stopping
from anima_batch.console.results import (
    audit_json,
    model_set_json,
    plan_json,
    show_audit,
    show_checkpoint_costs,
    show_error,
    show_json,
    show_line,
    show_model_set,
    show_model_sets,
    show_plan,
    show_progress,
    show_status,
    show_warnings,
)

__all__ = [
    "audit_json",
    "model_set_json",
    "plan_json",
    "show_audit",
    "show_checkpoint_costs",
    "show_error",
    "show_json",
    "show_line",
    "show_model_set",
    "show_model_sets",
    "show_plan",
    "show_progress",
    "show_run",
    "show_status",
    "show_stopping",
    "show_warnings",
]
