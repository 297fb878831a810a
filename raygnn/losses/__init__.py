"""Losses as a sum over seeds or links, and the weight that divides the sum."""

from raygnn.losses.class_losses import BinaryCrossEntropy, CrossEntropy
from raygnn.losses.link_losses import (
    BPR,
    N3,
    DirectAU,
    LinkBinaryCrossEntropy,
    Margin,
    Retrieval,
    SoftmaxOwnNegatives,
)
from raygnn.losses.link_scores import Candidates, LinkLoss, LinkScores, score_links
from raygnn.losses.seed_losses import (
    EmbeddingL2,
    Huber,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    WeightL1,
)

__all__ = [
    "BPR",
    "N3",
    "BinaryCrossEntropy",
    "Candidates",
    "CrossEntropy",
    "DirectAU",
    "EmbeddingL2",
    "Huber",
    "LinkBinaryCrossEntropy",
    "LinkLoss",
    "LinkScores",
    "Loss",
    "Margin",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Retrieval",
    "SoftmaxOwnNegatives",
    "WeightL1",
    "score_links",
]
