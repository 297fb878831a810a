"""Linear maps of encoder inputs: dense, sparse, or mapped by the layer itself.

A linear map of a sparse row is a weighted sum of weight columns, like a sum over neighbors. So it
and its gradient use `bag_sum`, in an order that does not depend on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raygnn.models.segment import apply_eagerly, bag_sum
from raygnn.sampling.sparse_features import SparseFeatures

#: Features of nodes as input of an encoder: [num_nodes, channels].
Features = Tensor | SparseFeatures


def apply_linear(module: nn.Module, x: Features) -> Tensor:
    """Applies torch's or PyG's linear layer: [num_rows, in_channels] to [.., out_channels]."""
    if isinstance(x, Tensor):
        out: Tensor = module(x)
        return out
    assert isinstance(module.weight, Tensor)
    bias: Any = module.bias
    return linear(x, module.weight, bias)


def linear(x: Features, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, also for sparse rows without densifying them, and under
    autocast.

    Args:
        weight: [out_channels, in_channels].
        bias: [out_channels].
    """
    if isinstance(x, Tensor):
        return functional.linear(x, weight, bias)
    device, dtype = weight.device.type, weight.dtype
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    out: Tensor = apply_eagerly(_SparseLinear, weight, x, dtype)
    return out if bias is None else out + bias.to(dtype)


def dropout(x: Features, rate: float, training: bool) -> Features:
    if isinstance(x, Tensor):
        return functional.dropout(x, rate, training)
    if not training or rate == 0:
        return x
    return replace(x, values=functional.dropout(x.values_or_ones(), rate))


def dense(x: Features, dtype: torch.dtype = torch.float32) -> Tensor:
    """Dense rows; sparse rows become `dtype`."""
    return x if isinstance(x, Tensor) else x.to_dense().to(dtype)


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: SparseFeatures, dtype: torch.dtype) -> Tensor:
        ctx.x, ctx.dtype = x, weight.dtype
        return bag_sum(weight.t().to(dtype), x.indices, x.indptr, x.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        order, row, ptr = ctx.x.by_column
        values = None if ctx.x.values is None else ctx.x.values.index_select(0, order)
        return bag_sum(grad, row, ptr, values).t().to(ctx.dtype), None, None


@dataclass(frozen=True)
class ProjectedRows:
    """Rows W x + b that are not computed yet, with features x no wider than the rows.

    A layer that multiplies its input can multiply W by its own weights instead of all rows by W,
    and compute only the rows that it reads unchanged.

    Attributes:
        features: [num_rows, in_channels], in the dtype of the weights.
        lin: W and b.
    """

    features: Tensor
    lin: nn.Linear

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: slice) -> ProjectedRows:
        return ProjectedRows(self.features[rows], self.lin)

    @cached_property
    def with_ones(self) -> Tensor:
        """[num_rows, in_channels + 1], features and a column of ones, which stands for b."""
        return functional.pad(self.features, (0, 1), value=1.0)

    @cached_property
    def weight(self) -> Tensor:
        """[channels, in_channels + 1]; the rows are `linear(with_ones, weight)`."""
        return torch.cat([self.lin.weight, self.lin.bias.unsqueeze(1)], dim=1)


def formed(rows: Tensor | ProjectedRows) -> Tensor:
    if isinstance(rows, Tensor):
        return rows
    return functional.linear(rows.features, rows.lin.weight, rows.lin.bias)


def mapped_from(
    rows: Tensor | ProjectedRows, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns x, A, a such that `linear(x, A, a)` is `linear(rows, weight, bias)`.

    Args:
        weight: [out_channels, channels].
        bias: [out_channels].
    """
    if isinstance(rows, Tensor):
        return rows, weight, bias
    lin = rows.lin
    return rows.features, weight @ lin.weight, functional.linear(lin.bias, weight, bias)
