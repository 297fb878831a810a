"""Losses that add: a sum over seeds, and the weight that the sum is divided by."""

from raygnn.losses.base import Loss
from raygnn.losses.classification import BinaryCrossEntropy, CrossEntropy
from raygnn.losses.regression import MeanSquaredError

__all__ = ["BinaryCrossEntropy", "CrossEntropy", "Loss", "MeanSquaredError"]
