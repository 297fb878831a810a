"""Early stopping, best weights, and moving averages of weights."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raygnn.config import Config
from raygnn.errors import TrainingError
from raygnn.loops.position import Position
from raygnn.parallel.sharding import own_part, part_of, whole_tensors, with_part


@dataclass
class BestTracker:
    """Tracks the best value of a monitored metric.

    An improvement is a change by more than `min_delta` in the direction of `mode`.

    Attributes:
        least_gain: relative to the best value, in place of `min_delta`.
        key: the config key of the metric, for errors.
    """

    monitor: str
    mode: str = "min"
    min_delta: float = 0.0
    least_gain: float = 0.0
    best: float | None = None
    key: str = "early_stopping.monitor"

    def value_of(self, metrics: dict[str, float]) -> float:
        """The monitored value. Raises a TrainingError if the metric is missing or NaN."""
        known, rule = sorted(metrics), "this run does not log it"
        TrainingError.check_choice(self.key, self.monitor, known, rule, id="metric-not-logged")
        value = metrics[self.monitor]
        if math.isnan(value):
            raise TrainingError(
                f"The monitored metric {self.monitor} is NaN. Lower optimizer.args.lr, set "
                "training.clip_grad_norm, or monitor another. [monitor-nan]"
            )
        return value

    def is_better(self, value: float) -> bool:
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > max(self.min_delta, self.least_gain * abs(self.best))

    def improves(self, value: float) -> bool:
        """Whether `value` beats the best so far, which it then replaces."""
        if self.is_better(value):
            self.best = value
            return True
        return False


@dataclass
class EarlyStopper:
    """Stops after `patience` validations in a row without improvement."""

    tracker: BestTracker
    patience: int
    num_without_improvement: int = 0

    def should_stop(self, value: float) -> bool:
        """Counts one validation. All ranks see the same reduced value."""
        if self.tracker.improves(value):
            self.num_without_improvement = 0
        else:
            self.num_without_improvement += 1
        return self.is_out_of_patience

    @property
    def is_out_of_patience(self) -> bool:
        return self.num_without_improvement >= self.patience

    def left_after(self, value: float) -> int:
        """Validations until the stop if neither `value` nor a later one improves the metric."""
        stale = 0 if self.tracker.is_better(value) else self.num_without_improvement + 1
        return max(self.patience - stale, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.tracker.best, "num_without_improvement": self.num_without_improvement}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracker.best = state["best"]
        self.num_without_improvement = state["num_without_improvement"]


class Watched(NamedTuple):
    """How a task is validated and stopped by default.

    Attributes:
        monitor, mode: a metric, and whether less ("min") or more ("max") is better.
        least_gain: relative improvement below which early stopping counts none.
        most_steps: between validations, if an epoch has more.
    """

    monitor: str = "val/loss"
    mode: str = "min"
    least_gain: float = 0.0
    most_steps: int = sys.maxsize


#: Relative gain that counts where a model has other parts than the GNN.
LEAST_GAIN = 1e-3


VALIDATION_LOSS = Watched()


def best_tracker(
    config: Config, has_validation: bool, default: Watched = VALIDATION_LOSS
) -> BestTracker:
    """Tracks `checkpoint.monitor`, else the metric of early stopping, else the task's `default`."""
    stopping, checkpoint = config.early_stopping, config.checkpoint
    if checkpoint.monitor is None and stopping is not None:
        return BestTracker(*_metric(stopping.monitor, stopping.mode, default, has_validation))
    metric = _metric(checkpoint.monitor, checkpoint.mode or "min", default, has_validation)
    return BestTracker(*metric, key="checkpoint.monitor")


def early_stopper(
    config: Config, has_validation: bool, default: Watched = VALIDATION_LOSS
) -> EarlyStopper | None:
    """The configured early stopping, if any. `default`: of the task."""
    stopping = config.early_stopping
    if stopping is None:
        return None
    metric = _metric(stopping.monitor, stopping.mode, default, has_validation)
    is_default = stopping.monitor is None and stopping.min_delta is None
    least_gain = default.least_gain if is_default else 0.0
    return EarlyStopper(
        BestTracker(*metric, stopping.min_delta or 0.0, least_gain), stopping.patience
    )


def _metric(
    monitor: str | None, mode: str, default: Watched, has_validation: bool
) -> tuple[str, str]:
    """The configured metric or the default; the training loss if nothing is validated."""
    watched = default[:2] if monitor is None else (monitor, mode)
    is_missing = watched[0].startswith("val/") and not has_validation
    return ("train/loss", "min") if is_missing else watched


class BestWeights:
    """This rank's weights at the best validation, copied to host memory."""

    def __init__(self, tracker: BestTracker) -> None:
        self.tracker = tracker
        self.metrics: dict[str, float] = {}
        self.position = Position()
        self._weights: dict[str, Tensor] | None = None

    def update(self, metrics: dict[str, float], position: Position, module: nn.Module) -> bool:
        """Copies the module's weights if this validation is the best; returns whether it is."""
        if not self.tracker.improves(self.tracker.value_of(metrics)):
            return False
        self.metrics, self.position = dict(metrics), position
        self._weights = _copy(module.state_dict())
        return True

    def restore(self, module: nn.Module) -> None:
        """Loads the best weights. Does nothing if nothing was validated."""
        if self._weights is not None:
            module.load_state_dict(_as_in(module, self._weights))

    def state_dict(self, now: Position | None, module: nn.Module) -> dict[str, Any]:
        """The record, and the weights unless they equal those at `now`. Collective."""
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
        """Restores `state_dict`. The module already has its current weights."""
        self.tracker.best = state["value"]
        self.metrics = dict(state["metrics"])
        self.position = Position(**state["position"])
        weights, current = state["weights"], module.state_dict()
        if weights is not None:
            self._weights = _copy({n: part_of(t, current[n]) for n, t in weights.items()})
        else:
            self._weights = _copy(current) if self.metrics else None


def _copy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: own_part(tensor).detach().to("cpu", copy=True) for n, tensor in weights.items()}


def _as_in(module: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    current = module.state_dict()
    return {name: with_part(current[name], tensor) for name, tensor in weights.items()}


class WeightAverage:
    """Exponential moving average of parameters, in float32. Buffers are copied.

    The decay starts at 0.1 and grows with the steps, so that the average forgets the first weights.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self._module = module
        self._average = {
            name: parameter.detach().float().clone() for name, parameter in _floats(module)
        }

    def update(self, step: int) -> None:
        """Adds the weights after a step, counted from 0."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for name, parameter in _floats(self._module):
            average = own_part(self._average[name])
            average.lerp_(own_part(parameter.detach()).float(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Puts the average into the model while a block runs."""
        trained = {name: parameter.detach().clone() for name, parameter in _floats(self._module)}
        self._copy_in(self._average)
        try:
            yield
        finally:
            self._copy_in(trained)

    def state_dict(self) -> dict[str, Any]:
        """The average; sharded weights complete on rank 0 and None on others. Collective."""
        return whole_tensors(self._average)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, average in self._average.items():
            average.copy_(part_of(state[name], average))

    @torch.no_grad()
    def _copy_in(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in _floats(self._module):
            parameter.copy_(weights[name])


def _floats(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((n, p) for n, p in module.named_parameters() if p.is_floating_point())
