"""A moving average of the weights, and its turn in the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.parallel.sharding import own_part, part_of, whole_tensors


class WeightAverage:
    """Exponential moving average of parameters, in float32; buffers are taken as they are.

    Equal on all ranks, as the weights are, or shared out, as they are.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self._module = module
        self._average = {
            name: parameter.detach().float().clone() for name, parameter in _floats(module)
        }

    def update(self) -> None:
        """Moves the average towards the weights; called after each optimizer step."""
        for name, parameter in _floats(self._module):
            average = own_part(self._average[name])
            average.lerp_(own_part(parameter.detach()).float(), 1 - self._decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Lends the average to the model, and takes it back."""
        own = {name: parameter.detach().clone() for name, parameter in _floats(self._module)}
        self._copy_in(self._average)
        try:
            yield
        finally:
            self._copy_in(own)

    def state_dict(self) -> dict[str, Any]:
        """The average; of weights that are shared out, None on other ranks than 0.

        Collective: all ranks must call.
        """
        return whole_tensors(self._average)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Takes back what `state_dict` gave on rank 0."""
        for name, average in self._average.items():
            average.copy_(part_of(state[name], average))

    @torch.no_grad()
    def _copy_in(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in _floats(self._module):
            parameter.copy_(weights[name])


def _floats(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((n, p) for n, p in module.named_parameters() if p.is_floating_point())
