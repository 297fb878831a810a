"""Sparse gradients of embedding tables: only the rows that were read travel between ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raygnn.parallel import collectives


class SparseGradients:
    """The parameters of a module whose gradients are sparse, and their sum over ranks."""

    def __init__(self, module: nn.Module) -> None:
        tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        self.parameters = [t.weight for t in tables if t.sparse and t.weight.requires_grad]

    def reduce(self, *, zero: bool) -> None:
        """Leaves in each `.grad` the coalesced sum over all ranks; none counts as no rows.

        Collective: all ranks must call.

        Args:
            zero: this rank adds nothing.
        """
        for parameter in self.parameters:
            rows, values = _rows_of(parameter, zero=zero)
            rows, values = collectives.gather_rows(rows), collectives.gather_rows(values)
            grad = torch.sparse_coo_tensor(rows.unsqueeze(0), values, parameter.shape)
            parameter.grad = grad.coalesce()

    def scale(self, factor: float) -> None:
        """Multiplies every gradient by one factor."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def gradient_values(parameter: Tensor) -> Tensor:
    """What a gradient holds: of a sparse one the values that it has."""
    assert parameter.grad is not None
    grad = parameter.grad
    return grad.coalesce().values() if grad.is_sparse else grad


def _rows_of(parameter: Tensor, *, zero: bool) -> tuple[Tensor, Tensor]:
    if parameter.grad is None or zero:
        rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
        return rows, parameter.new_empty(0, *parameter.shape[1:])
    grad = parameter.grad.coalesce()
    return grad.indices()[0], grad.values()
