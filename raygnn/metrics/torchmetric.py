"""Metrics of torchmetrics, computed once over all rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import Tensor

from raygnn.errors import ConfigError
from raygnn.metrics.base import GatheredMetric, Metric, Problem

if TYPE_CHECKING:
    import torchmetrics  # takes seconds to import: only a config that names it pays for that

_PROBLEMS: tuple[Problem, ...] = ("multi_class", "multi_label", "regression")


class TorchMetric(GatheredMetric):
    """Gives all rows at once to a fresh copy of a torchmetrics metric.

    The copy takes part in no collective of its own, so one rank may compute it alone.

    Args:
        metric: what `torchmetrics` calls preds are the model's raw outputs, logits for classes.
        name: under which it is logged; None makes one of the class name, as multiclass_f1_score.
    """

    problems = _PROBLEMS

    def __init__(
        self,
        metric: torchmetrics.Metric,
        num_outputs: int,
        problem: Problem,
        name: str | None = None,
    ) -> None:
        self.name = name or _snake_case(type(metric).__name__)
        super().__init__(num_outputs, problem)
        self.metric = metric

    def compute(self, prediction: Tensor, target: Tensor) -> dict[str, float]:
        """Gives the value under the metric's name; of several values, each under name/key.

        Raises:
            ConfigError: the metric does not give numbers.
        """
        metric = self.metric.clone().to(prediction.device)
        metric.reset()
        metric.sync_on_compute = False
        metric.dist_sync_on_step = False
        if prediction.dim() == 2 and prediction.shape[1] == 1 and target.dim() == 1:
            prediction = prediction.squeeze(1)
        metric.update(prediction, target)
        value = metric.compute()
        named = value if isinstance(value, dict) else {"": value}
        results: dict[str, float] = {}
        for key, entry in named.items():
            name = f"{self.name}/{key}" if key else self.name
            results.update(self._numbers(name, entry))
        return results

    def _numbers(self, name: str, value: object) -> dict[str, float]:
        if isinstance(value, Tensor) and value.numel() == 1:
            return {name: float(value)}
        if isinstance(value, Tensor) and value.dim() == 1:
            return {f"{name}/{i}": float(entry) for i, entry in enumerate(value)}
        got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"metrics.type={type(self.metric).__name__!r} is invalid: it gives {got}, not a number "
            f"or a vector of numbers. Choose a metric that can be logged."
        )


def as_metric(metric: Metric | torchmetrics.Metric, num_outputs: int, problem: Problem) -> Metric:
    """Wraps a metric of torchmetrics; gives one of raygnn's as it is."""
    if isinstance(metric, Metric):
        return metric
    return TorchMetric(metric, num_outputs, problem)


def _snake_case(name: str) -> str:
    # MulticlassF1Score -> multiclass_f1_score, BinaryAUROC -> binary_auroc
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
