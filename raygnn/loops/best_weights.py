"""The best weights so far, kept whatever the checkpoint policy is."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from raygnn.loops.early_stopping import BestTracker
from raygnn.loops.position import Position


class BestWeights:
    """A copy, in host memory, of the weights at the best validation, equal on all ranks."""

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
        self._weights = _copy(module)
        return True

    def restore(self, module: nn.Module) -> None:
        """Loads the best weights into the module; leaves it alone if nothing was validated."""
        if self._weights is not None:
            module.load_state_dict(self._weights)

    def state_dict(self, now: Position | None) -> dict[str, Any]:
        """The record, and the weights unless they are those that the run has at `now`."""
        return {
            "value": self.tracker.best,
            "metrics": self.metrics,
            "position": self.position.state_dict(),
            "weights": None if self.position == now else self._weights,
        }

    def load_state_dict(self, state: dict[str, Any], module: nn.Module) -> None:
        """Takes back what `state_dict` gave; the module holds the present weights already."""
        self.tracker.best = state["value"]
        self.metrics = dict(state["metrics"])
        self.position = Position(**state["position"])
        self._weights = state["weights"] or (_copy(module) if self.metrics else None)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.detach().to("cpu", copy=True) for name, tensor in module.state_dict().items()
    }
