"""What one machine takes for each part of a computed step: the file format that the simulation reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal, get_args

import tomli
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anima_batch.errors import UsageError
from anima_batch.files import read_bounded

Branch = Literal["self_attn", "cross_attn", "mlp"]
BRANCHES: tuple[Branch, ...] = get_args(Branch)  # in a block's order
_FOLDER = Path(__file__).parent
LIMIT_BYTES = 1 << 20  # a table is a page of text
PATCH_PIXELS = 16  # a token is a square of so many pixels a side

Seconds = Annotated[float, Field(ge=0, le=1e6)]
Line = Annotated[str, Field(max_length=1000)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class BranchTimes(_Frozen):
    """One subgraph of a branch, its mean over the blocks.

    `load`, `init`, `release`: once a session. `run`: one CFG stream on the accelerator. `prepare` and `finish`: the
    host's work for one stream before and after that. `bytes`: of its file.
    """

    bytes: int = Field(ge=0, lt=2**63)
    load_seconds: Seconds
    init_seconds: Seconds
    run_seconds: Seconds
    release_seconds: Seconds
    prepare_seconds: Seconds
    finish_seconds: Seconds

    @property
    def lifecycle_seconds(self) -> float:
        """Of one session."""
        return self.load_seconds + self.init_seconds + self.release_seconds

    def scale(self, share: float) -> BranchTimes:
        """With `run`, `prepare` and `finish` multiplied."""
        keys = ("run_seconds", "prepare_seconds", "finish_seconds")
        return self.model_copy(update={key: getattr(self, key) * share for key in keys})


class Branches(_Frozen):
    """The subgraphs of a block."""

    self_attn: BranchTimes
    cross_attn: BranchTimes
    mlp: BranchTimes


class Table(_Frozen):
    """The timing table of a machine for one picture size, all work taken alone.

    `cores`: how many accelerator cores can run graphs side by side. `cpus`: processors that host, stager and, where it
    is no NPU, the accelerator share; `run_cpus`: how many of them a run keeps busy (0 for an NPU, the threads of ONNX
    Runtime). `begin` and `end`: the host's work in a computed step before the first and after the last block.
    `overlap_slowdown`: how many times as long work takes while other work is under way, for want of memory bandwidth.
    `sessions_fit`: how many sessions can be open at once, null where nobody tried.
    `model_set`: the digest of the model set that was measured, null where that is not the point.
    """

    schema_version: Literal[1]
    name: Line
    machine: Line
    backend: Literal["onnx", "rknn"]
    sources: tuple[Line, ...]
    model_set: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    blocks: int = Field(ge=1, le=99)
    width: int = Field(ge=16, le=8192, multiple_of=PATCH_PIXELS)
    height: int = Field(ge=16, le=8192, multiple_of=PATCH_PIXELS)
    cores: int = Field(ge=1, le=16)
    cpus: int = Field(ge=1, le=4096)
    run_cpus: float = Field(ge=0, le=4096)
    sessions_fit: int | None = Field(default=None, ge=1)
    overlap_slowdown: float = Field(default=1.0, ge=1, le=100)
    begin_seconds: Seconds
    end_seconds: Seconds
    forecast_seconds: Seconds
    encode_seconds: Seconds | None = None
    decode_seconds: Seconds | None = None
    branches: Branches

    @property
    def tokens(self) -> int:
        """Of the picture."""
        return self.width * self.height // PATCH_PIXELS**2

    def times(self, branch: Branch) -> BranchTimes:
        """What a subgraph of that branch takes."""
        times: BranchTimes = getattr(self.branches, branch)
        return times

    @property
    def lifecycle_seconds(self) -> float:
        """Load, init and release of all subgraphs once."""
        return self.blocks * sum(self.times(branch).lifecycle_seconds for branch in BRANCHES)

    @property
    def block_bytes(self) -> int:
        """The files of one block."""
        return sum(self.times(branch).bytes for branch in BRANCHES)

    def scale(self, blocks: int, tokens: int) -> Table:
        """The table of a model of so many blocks and a picture of so many tokens: runs and the host's work grow with
        the tokens, which leaves out that attention grows faster; a session's lifecycle and what a text takes do not.
        """
        share = tokens / self.tokens
        branches = {branch: self.times(branch).scale(share) for branch in BRANCHES}
        keys = ("begin_seconds", "end_seconds", "forecast_seconds", "decode_seconds")
        scaled = {key: None if (value := getattr(self, key)) is None else value * share for key in keys}
        return self.model_copy(update={**scaled, "blocks": blocks, "branches": Branches(**branches)})


def list_tables() -> list[str]:
    """The names of the built-in tables."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_table(name: str) -> Table:
    """The table of a built-in name, or of a TOML or JSON file; raises UsageError."""
    path = _FOLDER / f"{name}.toml" if name in list_tables() else Path(name)
    known = ", ".join(list_tables())
    try:
        text = read_bounded(path, LIMIT_BYTES).decode("utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomli.loads(text)
        return Table.model_validate(content)
    except OSError as error:
        raise UsageError(
            f"{path}: a timing table must be one of {known}, or a file that `bench step` wrote, got: {error.strerror}"
        ) from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the table"
        raise UsageError(f"{path}: {where}: {fault['msg']}, got {fault['input']!r:.60}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, no TOML
        raise UsageError(f"{path}: a timing table must be TOML or JSON: {error}") from error
