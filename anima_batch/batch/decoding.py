"""What decoding was measured to take, kept beside the timing tables, and whether a job's pictures will find it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from anima_batch.batch.opening import Batch
from anima_batch.environment import available_bytes
from anima_batch.files import make_folder, write_atomic


class DecodeNeed(BaseModel):
    """Bytes of memory that a picture's decoding took, in tiles of so many latent pixels or whole (None)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int
    height: int
    tile: int | None
    threads: int
    bytes: int


class DecodeNeeds(BaseModel):
    """All that were measured together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int
    needs: tuple[DecodeNeed, ...]


def needs_path(workspace: Path, digest: str) -> Path:
    """Where those measured with a model set lie."""
    return workspace / "outputs" / ".timing" / f"{digest[:12]}-decode.json"


def write_needs(workspace: Path, digest: str, needs: Iterable[DecodeNeed]) -> None:
    """Keep them, in the place of those measured before; raises StorageError."""
    path = needs_path(workspace, digest)
    make_folder(path.parent)
    write_atomic(path, DecodeNeeds(schema_version=1, needs=tuple(needs)).model_dump_json(indent=2).encode())


def find_shortage(batch: Batch, pixels: Iterable[int]) -> Iterator[str]:
    """A line if a picture of so many pixels needs more memory than there is, as far as that was measured.

    The tile is the model set's, since pictures depend on it: a larger one needs no less than a smaller one that was
    measured, and tiles of one size need as much on any.
    """
    path = needs_path(batch.workspace, batch.model_set.digest)
    if not path.is_file():
        return
    try:
        kept = DecodeNeeds.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        yield f"{path}: cannot be read: remove it, or run `anima-batch bench decode` again"
        return
    way, largest = (batch.model_set.description.vae.tile, batch.spec.run.threads), max(pixels, default=0)
    rows = [need for need in kept.needs if (need.tile, need.threads) == way]
    least = max((need.bytes for need in rows if need.tile or need.width * need.height <= largest), default=0)
    if least > (available := available_bytes()):
        yield (
            f"decoding needs {least / 1e6:.0f} MB or more, as `anima-batch bench decode` measured it, "
            f"{available / 1e6:.0f} MB are available: stop other programs, "
            "or convert the model set with a --vae-tile that fits"
        )
