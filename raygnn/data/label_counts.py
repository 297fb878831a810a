"""Frequencies of classes and labels in training, and weights that balance them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: The word of a config for weights that make up for the counts.
BALANCED = "balanced"


@dataclass(frozen=True)
class LabelCounts:
    """Number of training rows per class or label.

    Attributes:
        num_nodes: training nodes of the whole graph.
        counts: nodes of each class or with each label.
    """

    num_nodes: int
    counts: tuple[int, ...]

    @classmethod
    def of_classes(cls, labels: np.ndarray, num_classes: int) -> LabelCounts:
        """Counts classes, integers [num_nodes] or [num_nodes, 1]."""
        counts = np.bincount(labels.reshape(-1).astype(np.int64), minlength=num_classes)
        return cls(len(labels), tuple(counts.tolist()))

    @classmethod
    def of_labels(cls, labels: np.ndarray, num_labels: int) -> LabelCounts:
        """Counts labels, zeros and ones [num_nodes, num_labels]."""
        counts = labels.reshape(len(labels), num_labels).astype(bool).sum(axis=0)
        return cls(len(labels), tuple(counts.tolist()))

    def class_weights(self) -> np.ndarray:
        """Weights of classes, float64, so that all classes together weigh the same.

        num_nodes / (occurring classes * nodes of the class), as scikit-learn's
        `compute_class_weight("balanced")`; their mean over the training nodes is 1. A class that
        does not occur weighs 1.
        """
        counts = np.array(self.counts, np.float64)
        weights = np.ones(len(counts))
        present = counts > 0
        weights[present] = self.num_nodes / (present.sum() * counts[present])
        return weights

    def binary_weights(self) -> np.ndarray:
        """Balanced weights without and with each label, float64 [num_labels, 2]."""
        pairs = [LabelCounts(self.num_nodes, (self.num_nodes - n, n)) for n in self.counts]
        return np.stack([pair.class_weights() for pair in pairs])
