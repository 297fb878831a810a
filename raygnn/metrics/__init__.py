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
from raygnn.metrics.diagnostics import (
    MAX_CONFUSED,
    Calibration,
    ClassFigures,
    Confusion,
    Diagnostic,
    ErrorsByValue,
    MetricsOverTime,
    metrics_of,
)
from raygnn.metrics.full_ranking import FullRanking, Links
from raygnn.metrics.sampled_ranking import Hits, LinkAUC, LinkAveragePrecision, MeanReciprocalRank
from raygnn.metrics.seed_metrics import (
    AUROC,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    F1Macro,
    F1Micro,
    MeanAbsoluteError,
    NormalizedMeanAbsoluteError,
    RootMeanSquaredError,
)

__all__ = [
    "AUROC",
    "MAX_CONFUSED",
    "R2",
    "Accuracy",
    "AveragePrecision",
    "BalancedAccuracy",
    "Calibration",
    "ClassFigures",
    "ComparedMetric",
    "ComparedScores",
    "Confusion",
    "Diagnostic",
    "ErrorsByValue",
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
    "MetricsOverTime",
    "NormalizedMeanAbsoluteError",
    "Problem",
    "RootMeanSquaredError",
    "SumMetric",
    "TorchMetric",
    "as_metric",
    "compare",
    "metrics_of",
]
