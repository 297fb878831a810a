"""Metrics that are exact over any number of ranks."""

from raygnn.metrics.base import ComparedMetric, GatheredMetric, Metric, Problem, SumMetric
from raygnn.metrics.counts import Accuracy, F1Macro, F1Micro
from raygnn.metrics.errors import R2, MeanAbsoluteError
from raygnn.metrics.full_ranking import FullRanking, Links
from raygnn.metrics.link_classification import ComparedScores, LinkAUC, LinkAveragePrecision
from raygnn.metrics.ranking import AUROC, AveragePrecision
from raygnn.metrics.sampled_ranking import Hits, MeanReciprocalRank
from raygnn.metrics.torchmetric import TorchMetric, as_metric

__all__ = [
    "AUROC",
    "R2",
    "Accuracy",
    "AveragePrecision",
    "ComparedMetric",
    "ComparedScores",
    "F1Macro",
    "F1Micro",
    "FullRanking",
    "GatheredMetric",
    "Hits",
    "LinkAUC",
    "LinkAveragePrecision",
    "Links",
    "MeanAbsoluteError",
    "MeanReciprocalRank",
    "Metric",
    "Problem",
    "SumMetric",
    "TorchMetric",
    "as_metric",
]
