"""The only place that draws: results on stdout, progress and errors on stderr, events as JSON lines."""

from anima_batch.console.events import event_json, follow, summarise_end
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
    "event_json",
    "follow",
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
    "show_status",
    "show_warnings",
    "summarise_end",
]
