"""Whether the NPU still answers fixed inputs as it did when the job's last picture was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from anima_batch.environment import changed_environment
from anima_batch.errors import EnvironmentChangedError
from anima_batch.store import CorruptError, read_manifest

_KEY = "npu_canary"


def check_canary(manifests: Iterable[Path], environment: Mapping[str, str | None]) -> None:
    """Raise EnvironmentChangedError if the answer alone differs from that in the newest of the manifests.

    Where a version or a core mask differs too, another answer is to be expected.
    """
    if environment.get(_KEY) is None:
        return
    newest = max(manifests, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return
    try:
        before = read_manifest(newest).environment.model_dump()
    except CorruptError:  # it was read a moment ago; whatever came over it is told by the next survey
        return
    if before[_KEY] is None:
        return
    changed = changed_environment(before, environment)
    if changed and all(line.startswith(f"{_KEY}:") for line in changed):
        raise EnvironmentChangedError(
            f"{newest}: the same versions gave another answer to fixed inputs ({changed[0]}): the NPU, its memory or "
            "its driver is at fault, now or then: check both pictures, or go on with --accept-environment"
        )
