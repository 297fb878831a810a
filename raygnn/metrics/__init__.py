"""Metrics that are exact over any number of ranks."""

from raygnn.metrics.base import GatheredMetric, Metric, Problem, SumMetric
from raygnn.metrics.counts import Accuracy, F1Macro, F1Micro
from raygnn.metrics.errors import MAE, R2

__all__ = [
    "MAE",
    "R2",
    "Accuracy",
    "F1Macro",
    "F1Micro",
    "GatheredMetric",
    "Metric",
    "Problem",
    "SumMetric",
]
