"""Rows that are a linear map of features, left to the layer that reads them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ProjectedRows:
    """The rows W x + b of features x, where x is no wider than they are.

    A layer that multiplies its input can multiply W by its own weights instead of all rows by W,
    and forms only the rows that it reads as they are.

    Attributes:
        features: [num_rows, in_channels], in the type of the weights.
        lin: W and b.
    """

    features: Tensor
    lin: nn.Linear

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: slice) -> ProjectedRows:
        return ProjectedRows(self.features[rows], self.lin)


def formed(rows: Tensor | ProjectedRows) -> Tensor:
    """The rows as a tensor, [num_rows, channels]."""
    if isinstance(rows, Tensor):
        return rows
    return functional.linear(rows.features, rows.lin.weight, rows.lin.bias)


def mapped_from(
    rows: Tensor | ProjectedRows, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gives x, A, a for which `linear(x, A, a)` is `linear(rows, weight, bias)`.

    Args:
        weight: [out_channels, channels].
        bias: [out_channels].
    """
    if isinstance(rows, Tensor):
        return rows, weight, bias
    lin = rows.lin
    return rows.features, weight @ lin.weight, functional.linear(lin.bias, weight, bias)
