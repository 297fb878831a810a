"""Weights that a run keeps beside those that it trains: the best ones, and a moving average."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raygnn.loops.early_stopping import BestTracker
from raygnn.loops.position import Position
from raygnn.parallel.sharding import own_part, part_of, whole_tensors, with_part


class BestWeights:
    """A copy, in host memory, of what this rank holds of the weights at the best validation."""

    def __init__(self, tracker: BestTracker) -> None:
        self.tracker = tracker
        self.metrics: dict[str, float] = {}
        self.position = Position()
        self._weights: dict[str, Tensor] | None = None

    def update(self, metrics: dict[str, float], position: Position, module: nn.Module) -> bool:
        """Keeps the module's weights if this validation is the best; returns whether it is."""
        if not self.tracker.improves(self.tracker.value_of(metrics)):
            return False
        self.metrics, self.position = dict(metrics), position
        self._weights = _copy(module.state_dict())
        return True

    def restore(self, module: nn.Module) -> None:
        """Loads the best weights into the module; leaves it alone if nothing was validated."""
        if self._weights is not None:
            module.load_state_dict(_as_in(module, self._weights))

    def state_dict(self, now: Position | None, module: nn.Module) -> dict[str, Any]:
        """The record, and the weights unless they are those that the run has at `now`.

        Collective: all ranks must call.
        """
        weights = None
        if self._weights is not None and self.position != now:
            weights = whole_tensors(_as_in(module, self._weights))
        return {
            "value": self.tracker.best,
            "metrics": self.metrics,
            "position": self.position.state_dict(),
            "weights": weights,
        }

    def load_state_dict(self, state: dict[str, Any], module: nn.Module) -> None:
        """Takes back what `state_dict` gave; the module holds the present weights already."""
        self.tracker.best = state["value"]
        self.metrics = dict(state["metrics"])
        self.position = Position(**state["position"])
        weights, own = state["weights"], module.state_dict()
        if weights is not None:
            self._weights = _copy({n: part_of(t, own[n]) for n, t in weights.items()})
        else:
            self._weights = _copy(own) if self.metrics else None


def _copy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: own_part(tensor).detach().to("cpu", copy=True) for n, tensor in weights.items()}


def _as_in(module: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    own = module.state_dict()
    return {name: with_part(own[name], tensor) for name, tensor in weights.items()}


class WeightAverage:
    """Exponential moving average of parameters, in float32; buffers are taken as they are.

    Equal on all ranks, as the weights are, or sharded as they are.
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
        """The average; of sharded weights, None on other ranks than 0.

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
