"""What of `run` needs the extra `attest`: nothing of it is imported unless it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anima_batch.errors import UsageError

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from anima_batch.runner import Event


def load_signer(path: Path | None) -> Signer | None:
    """What signs attestations, None if nobody asked for them; raises UsageError."""
    if path is None:
        return None
    with _extra("--attest"):
        from anima_batch import attest
    return attest.load_signer(path)


def load_finish(path: Path | None) -> Callable[[bytes], bytes] | None:
    """What puts Content Credentials into a PNG, None if nobody asked for them; raises UsageError.

    A PNG is signed for a try, so that certificates which C2PA refuses are known before the first image.
    """
    if path is None:
        return None
    with _extra("--c2pa"):
        from anima_batch import attest
    credentials = attest.load_credentials(path)
    credentials.try_out()
    return credentials.embed


def attest(events: Iterable[Event], workspace: Path, signer: Signer | None) -> Iterable[Event]:
    """The events, with attestations written as they pass where there is a signer."""
    if signer is None:
        return events
    from anima_batch.attest import attest_run

    return attest_run(events, workspace, signer)


@contextlib.contextmanager
def _extra(option: str) -> Iterator[None]:
    """What the block imports belongs to the extra `attest`; raises UsageError without it."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{option}: {error.name} is missing: pip install 'anima-batch[attest]'") from error
