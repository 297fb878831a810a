"""Metrics that are exact over any number of ranks."""

from raygnn.metrics.base import (
    ComparedMetric,
    GatheredMetric,
    Metric,
    Problem,
    SumMetric,
    TorchMetric,
    as_metric,
)
from raygnn.metrics.compared_scores import ComparedScores, compare
from raygnn.metrics.full_ranking import FullRanking, Links
from raygnn.metrics.link_classification import LinkAUC, LinkAveragePrecision
from raygnn.metrics.sampled_ranking import Hits, MeanReciprocalRank
from raygnn.metrics.seed_metrics import (
    AUROC,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    ClassFigures,
    F1Macro,
    F1Micro,
    MeanAbsoluteError,
    RootMeanSquaredError,
)

__all__ = [
    "AUROC",
    "R2",
    "Accuracy",
    "AveragePrecision",
    "BalancedAccuracy",
    "ClassFigures",
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
    "RootMeanSquaredError",
    "SumMetric",
    "TorchMetric",
    "as_metric",
    "compare",
]
