"""Rows of all ranks on every rank, with gradients back to the rank that made them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from raygnn.loops import collectives


def gather_with_gradient(rows: Tensor) -> Tensor:
    """Concatenates the ranks' rows in rank order; a row's gradient is summed over all ranks.

    So the gradients of the ranks' loss sums, added up as the engine does, are those of the sum of
    the losses.

    Collective: all ranks must call with equal dtypes and trailing shapes, a rank without rows too.
    Where the rows are floating point and require gradients the backward pass is collective as
    well: every rank's loss must depend on the result, if only by a factor of 0.

    Args:
        rows: [num_rows, ...]; the number may differ between ranks.
    Returns:
        [sum of num_rows, ...].
    """
    if not rows.is_floating_point():
        return collectives.gather_rows(rows)
    out: Tensor = _Gather.apply(rows)
    return out


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        num_rows = rows.shape[0]
        counts = collectives.gather_rows(torch.tensor([num_rows], device=rows.device))
        first = int(counts[: collectives.rank()].sum())
        ctx.own = slice(first, first + num_rows)
        return collectives.gather_rows(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return collectives.all_reduce_sum(grad.contiguous())[ctx.own]
