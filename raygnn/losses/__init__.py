"""Losses that add: a sum over seeds or links, and the weight that the sum is divided by."""

from raygnn.losses.base import Loss
from raygnn.losses.classification import BinaryCrossEntropy, CrossEntropy
from raygnn.losses.link_candidates import Candidates, score_links
from raygnn.losses.link_classification import LinkBinaryCrossEntropy
from raygnn.losses.link_pairs import BPR, Margin
from raygnn.losses.link_scores import LinkLoss, LinkScores
from raygnn.losses.regression import MeanSquaredError
from raygnn.losses.regularization import EmbeddingL2, WeightL1
from raygnn.losses.sampled_softmax import Retrieval, SoftmaxOwnNegatives

__all__ = [
    "BPR",
    "BinaryCrossEntropy",
    "Candidates",
    "CrossEntropy",
    "EmbeddingL2",
    "LinkBinaryCrossEntropy",
    "LinkLoss",
    "LinkScores",
    "Loss",
    "Margin",
    "MeanSquaredError",
    "Retrieval",
    "SoftmaxOwnNegatives",
    "WeightL1",
    "score_links",
]
