"""Muon for matrices and convolution kernels, Adam for everything else."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, distributed, nn

from training import workers

_MOMENTUM = 0.95
_BETAS = (0.9, 0.99)
_EPS = 1e-8
_ITERATIONS = 5
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that drives singular values to about 1
_MATCH = 0.2  # gives a Muon update the size of a usual Adam update, so that one rate serves both (Liu et al. 2025)


class Optimizer(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024): the momentum's nearest orthogonal matrix is the update.

    At this size it needs several times fewer steps than Adam. Embeddings, vectors and what is in `plain` go by Adam.
    """

    def __init__(self, model: nn.Module, rate: float, plain: Iterable[nn.Parameter] = ()) -> None:
        tables = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Embedding)}
        others = tables | {id(parameter) for parameter in plain}
        matrices: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for parameter in model.parameters():
            is_matrix = parameter.ndim in (2, 4) and id(parameter) not in others
            (matrices if is_matrix else rest).append(parameter)
        groups = [{"params": matrices, "kind": "muon"}, {"params": rest, "kind": "adam"}]
        super().__init__(groups, {"lr": rate})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # closures are not needed
        """Takes one step; all workers must have the same gradients, and share the work."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["kind"] == "muon":
                self._step_muon(parameters, group["lr"])
            else:
                self._step_adam(parameters, group["lr"])

    def _step_muon(self, parameters: list[nn.Parameter], rate: float) -> None:
        updates = torch.zeros(sum(parameter.numel() for parameter in parameters))
        parts = torch.split(updates, [parameter.numel() for parameter in parameters])
        for index, (parameter, part) in enumerate(zip(parameters, parts, strict=True)):
            assert parameter.grad is not None
            gradient = parameter.grad.flatten(1)
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(gradient)
            state["momentum"].lerp_(gradient, 1 - _MOMENTUM)
            if index % workers.WORKERS == distributed.get_rank():
                part.copy_(_orthogonalise(gradient.lerp(state["momentum"], _MOMENTUM)).flatten())
        distributed.all_reduce(updates)  # each update is one worker's, the others add zeros
        for parameter, part in zip(parameters, parts, strict=True):
            size = max(parameter.flatten(1).shape) ** 0.5
            parameter.sub_(part.view_as(parameter), alpha=rate * _MATCH * size)

    def _step_adam(self, parameters: list[nn.Parameter], rate: float) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            state = self.state[parameter]
            if not state:
                state |= {"step": 0, "mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
            state["step"] += 1
            state["mean"].lerp_(parameter.grad, 1 - _BETAS[0])
            state["square"].lerp_(parameter.grad.square(), 1 - _BETAS[1])
            first, second = (1 - beta ** state["step"] for beta in _BETAS)
            root = (state["square"] / second).sqrt_().add_(_EPS)
            parameter.addcdiv_(state["mean"], root, value=-rate / first)


def _orthogonalise(matrix: Tensor) -> Tensor:
    """About the orthogonal factor of the matrix, by Newton-Schulz iterations."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    factor: Tensor = x.T if matrix.shape[0] > matrix.shape[1] else x
    return factor
