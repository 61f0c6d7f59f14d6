"""How far arrays are from their references."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Deviation:
    """Sums in float64 over all values of one or more arrays; two of them add up to that of both.

    Values that are NaN or infinite in either array are counted, and left out of the sums.
    """

    values: int = 0
    dot: float = 0.0
    squares: float = 0.0
    reference_squares: float = 0.0
    absolute_sum: float = 0.0
    error_squares: float = 0.0
    max_abs: float = 0.0
    nan: int = 0
    inf: int = 0

    def __add__(self, other: Deviation) -> Deviation:
        return Deviation(
            values=self.values + other.values,
            dot=self.dot + other.dot,
            squares=self.squares + other.squares,
            reference_squares=self.reference_squares + other.reference_squares,
            absolute_sum=self.absolute_sum + other.absolute_sum,
            error_squares=self.error_squares + other.error_squares,
            max_abs=max(self.max_abs, other.max_abs),
            nan=self.nan + other.nan,
            inf=self.inf + other.inf,
        )

    @property
    def cosine(self) -> float:
        """Cosine of the angle between all values and their references; NaN where either is zero throughout."""
        length = math.sqrt(self.squares * self.reference_squares)
        return self.dot / length if length else math.nan

    @property
    def mae(self) -> float:
        """Mean absolute error."""
        return self.absolute_sum / self.values if self.values else math.nan

    @property
    def mse(self) -> float:
        """Mean squared error."""
        return self.error_squares / self.values if self.values else math.nan

    def figures(self) -> dict[str, float | int | None]:
        """What is shown of it; null for what is no number."""
        numbers = {"cosine": self.cosine, "mae": self.mae, "max_abs": self.max_abs, "mse": self.mse}
        shown: dict[str, float | int | None] = {
            name: value if math.isfinite(value) else None for name, value in numbers.items()
        }
        return {**shown, "nan": self.nan, "inf": self.inf}


def measure_deviation(array: Array, reference: Array) -> Deviation:
    """Of one array from its reference of the same shape."""
    if array.shape != reference.shape:
        raise ValueError(f"shapes must be equal, got {array.shape} and {reference.shape}")
    x, y = (side.astype(np.float64).ravel() for side in (array, reference))
    nan, inf = np.isnan(x) | np.isnan(y), np.isinf(x) | np.isinf(y)
    if (odd := nan | inf).any():
        x, y = x[~odd], y[~odd]
    error = x - y
    return Deviation(
        values=x.size,
        dot=float(x @ y),
        squares=float(x @ x),
        reference_squares=float(y @ y),
        absolute_sum=float(np.abs(error).sum()),
        error_squares=float(error @ error),
        max_abs=float(np.abs(error).max(initial=0.0)),
        nan=int(nan.sum()),
        inf=int((inf & ~nan).sum()),
    )
