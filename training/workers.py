"""Training in two processes of one thread each: on two cores that wastes less than two threads in every operator."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing, nn

WORKERS = 2


def run_workers(work: Callable[..., None], *arguments: Any) -> None:  # noqa: ANN401 - passed on as they are
    """Runs `work(rank, *arguments)` once in each worker and waits; raises what a worker raised."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
            _enter, (folder, work, arguments), nprocs=WORKERS
        )


def _enter(rank: int, folder: str, work: Callable[..., None], arguments: Sequence[Any]) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(str(Path(folder) / "store"), WORKERS)  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS)
    try:
        work(rank, *arguments)
    finally:
        distributed.destroy_process_group()


def average_gradients(parameters: Iterable[nn.Parameter]) -> float:
    """Replaces each gradient by its mean over the workers; returns the norm of all of them together.

    A sum of two numbers does not depend on their order, so that all workers go on with the same bits.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    flat /= WORKERS
    for gradient, part in zip(gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))
    return float(flat.norm())


def average(value: Tensor) -> float:
    """The mean of a number over the workers."""
    total = value.detach().clone()
    distributed.all_reduce(total)
    return float(total) / WORKERS


def broadcast(number: int) -> int:
    """The first worker's number, in all of them."""
    shared = torch.tensor([number])
    distributed.broadcast(shared, 0)
    return int(shared)
