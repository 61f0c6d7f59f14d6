"""A training run on disk: finished arrays, the state of a stage under way, and its log."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anima_batch.files import make_folder, write_atomic


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; every file in it is written whole or not at all."""

    path: Path

    def save_state(self, stage: str, state: dict[str, Any]) -> None:
        """Keeps what a stage needs to go on, tensors and numbers."""
        make_folder(self.path)
        stream = io.BytesIO()
        torch.save(state, stream)
        write_atomic(self.path / f"{stage}.pt", stream.getvalue())

    def load_state(self, stage: str) -> dict[str, Any] | None:
        """What save_state kept last, or None."""
        path = self.path / f"{stage}.pt"
        return torch.load(path, weights_only=True) if path.is_file() else None

    def save_array(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Keeps an array as `<name>.npy`."""
        make_folder(self.path)
        stream = io.BytesIO()
        np.save(stream, array)
        write_atomic(self.path / f"{name}.npy", stream.getvalue())

    def load_array(self, name: str) -> np.ndarray[Any, Any]:
        """An array that save_array kept, not read before it is used."""
        array: np.ndarray[Any, Any] = np.load(self.path / f"{name}.npy", mmap_mode="r")
        return array

    def has_array(self, name: str) -> bool:
        """Whether save_array kept an array of that name."""
        return (self.path / f"{name}.npy").is_file()

    def log(self, stage: str, **values: float) -> None:
        """Adds a line to the stage's log and says it."""
        line = json.dumps({"stage": stage, **{key: round(value, 5) for key, value in values.items()}})
        with (self.path / f"{stage}.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
        print(line, flush=True)

    def read_log(self, stage: str) -> list[dict[str, float]]:
        """The stage's log; of a step that was done again after a kill the last line counts."""
        path = self.path / f"{stage}.jsonl"
        if not path.is_file():
            return []
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return list({line["step"]: line for line in lines}.values())
