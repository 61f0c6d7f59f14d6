"""Audits summed up by the model set that made the pictures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from anima_batch.audit.auditor import Audit


@dataclass
class ModelSetGroup:
    """The pictures of one model set: how many, and how many of their audits found a difference.

    `name` and `digest` are None for pictures of which that is not known; `failed` counts images that were given up.
    `weights` has the digest of each file that the set was made from, by role.
    """

    name: str | None
    digest: str | None
    images: int = 0
    failed: int = 0
    changed: int = 0
    weights: dict[str, str] = field(default_factory=dict)


def group_by_model_set(audits: Iterable[Audit]) -> list[ModelSetGroup]:
    """A group for each model set, the one with the most images first."""
    groups: dict[str | None, ModelSetGroup] = {}
    for audit in audits:
        model_set = audit.facts.get("model_set", {})
        digest = model_set.get("digest")
        group = groups.setdefault(digest, ModelSetGroup(model_set.get("name"), digest))
        group.images += 1
        group.failed += audit.facts.get("status") == "failed"
        group.changed += bool(audit.differences)
        group.weights |= {source["role"]: source["sha256"] for source in audit.facts.get("weights", [])}
    return sorted(groups.values(), key=lambda group: -group.images)
