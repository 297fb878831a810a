"""Parameters that had no part in a batch get a gradient of 0, not none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def keep_in_graph(
    outputs: dict[str, Tensor], parameters: Iterable[nn.Parameter]
) -> dict[str, Tensor]:
    """Gives the outputs as they are; each parameter has a part in each of them, times 0.

    So a batch without some node or edge type has the same parameters with gradients as any other,
    whichever output the loss is taken of.
    """
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if not torch.is_grad_enabled() or not parameters:
        return outputs
    kept = _KeepInGraph.apply(len(outputs), *outputs.values(), *parameters)
    return dict(zip(outputs, kept, strict=True))


class _KeepInGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, num_outputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.parameters = [(p.shape, p.dtype, p.device) for p in tensors[num_outputs:]]
        return tuple(tensor.view_as(tensor) for tensor in tensors[:num_outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        zeros = [
            torch.zeros((), dtype=dtype, device=device).expand(shape)
            for shape, dtype, device in ctx.parameters
        ]
        return None, *grads, *zeros
