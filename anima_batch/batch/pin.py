"""The pinned expansion of a job: what the last run was asked for, and the random seeds that stay."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anima_batch.errors import UsageError
from anima_batch.files import read_json, write_atomic
from anima_batch.job import MAX_SEED

SCHEMA_VERSION = 1
PIN_BYTES = 32 << 20  # what 100,000 images take, the most that a job may ask for


class Pin(BaseModel):
    """The content of `job.json`: the expansion of the last run, and the random seeds drawn by position.

    `images` has the file name's stem of each request id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    job_sha256: str = ""
    drawn: tuple[Annotated[int, Field(strict=True, ge=0, le=MAX_SEED)], ...] = ()
    images: Mapping[str, str] = {}


def read_pin(outputs: Path) -> Pin:
    """The pinned expansion of a job folder, an empty one before its first run.

    Raises UsageError if it is not one, StorageError where the machine fails to read it.
    """
    path = outputs / "job.json"
    if not os.path.lexists(path):
        return Pin()
    content = read_json(path, what="the pinned job", error=UsageError, limit_bytes=PIN_BYTES)
    version = content.get("schema_version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UsageError(f"{path}: schema_version: must be at most 1, got {version}: use the anima-batch that wrote it")
    try:
        return Pin.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "job.json"
        raise UsageError(
            f"{path}: {where}: {fault['msg']}: it keeps the random seeds: restore it, or move it away to draw anew"
        ) from error


def write_pin(outputs: Path, pin: Pin) -> None:
    """Make the pin durable, unless it is what lies there."""
    if pin != read_pin(outputs):
        text = json.dumps(pin.model_dump(mode="json"), ensure_ascii=False, indent=0)
        write_atomic(outputs / "job.json", f"{text}\n".encode())
