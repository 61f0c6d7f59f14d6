"""Which pictures a file of weights, or of a model set, took part in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from anima_batch.audit.auditor import Audit
from anima_batch.errors import UsageError
from anima_batch.files import file_digests, storage_errors

_DIGITS = re.compile(r"[0-9a-f]{10,64}")


def identify_weights(name: str) -> str:
    """The SHA-256 of a file, or the digits given in its stead: 10 of them, as model sites show them, up to all 64.

    Raises UsageError for what is neither, StorageError for a file that cannot be read.
    """
    path = Path(name)
    if path.is_file():
        with storage_errors(path):
            return file_digests(path)[0]
    if _DIGITS.fullmatch(name.lower()):
        return name.lower()
    raise UsageError(f"--weights: must be a file, or 10 to 64 hex digits of its SHA-256, got {name!r}")


def select_made_with(audits: Iterable[Audit], sha256: str) -> Iterator[Audit]:
    """The audits of pictures in which the file with a digest that begins so took part; the facts name its roles."""
    for audit in audits:
        if roles := [role for role, digest in audit.parts if digest.startswith(sha256)]:
            yield replace(audit, facts={"made_with": roles, **audit.facts})
