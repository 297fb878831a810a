"""Metrics that are exact over any number of ranks."""

from raygnn.metrics.base import GatheredMetric, Metric, Problem, SumMetric
from raygnn.metrics.counts import Accuracy, F1Macro, F1Micro
from raygnn.metrics.errors import R2, MeanAbsoluteError
from raygnn.metrics.ranking import AUROC, AveragePrecision
from raygnn.metrics.torchmetric import TorchMetric, as_metric

__all__ = [
    "AUROC",
    "R2",
    "Accuracy",
    "AveragePrecision",
    "F1Macro",
    "F1Micro",
    "GatheredMetric",
    "MeanAbsoluteError",
    "Metric",
    "Problem",
    "SumMetric",
    "TorchMetric",
    "as_metric",
]
