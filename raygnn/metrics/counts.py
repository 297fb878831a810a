"""Metrics that count right and wrong predictions."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from raygnn.metrics.base import SumMetric


class Accuracy(SumMetric):
    """Share of rows predicted right; of a multi-label row, all labels have to be.

    Equal to scikit-learn's `accuracy_score`. A class is predicted by the largest logit, a label by
    a positive one.
    """

    name = "accuracy"
    problems = ("multi_class", "multi_label")

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Counts the rows that are right, and all rows."""
        if self.problem == "multi_class":
            right = prediction.argmax(dim=-1) == target.flatten()
        else:
            right = ((prediction > 0) == _labels(prediction, target)).all(dim=-1)
        return torch.stack([right.sum(), right.new_tensor(len(right), dtype=torch.long)]).double()

    def compute(self, state: Tensor) -> dict[str, float]:
        """Gives `accuracy`."""
        right, total = state.tolist()
        return {self.name: right / total if total else math.nan}


class _F1(SumMetric):
    problems = ("multi_class", "multi_label")

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Counts true positives, predicted and actual rows of each class or label."""
        if self.problem == "multi_class":
            predicted, target = prediction.argmax(dim=-1), target.flatten()
            counts = [
                torch.bincount(classes, minlength=self.num_outputs)
                for classes in (target[predicted == target], predicted, target)
            ]
        else:
            labels, positive = _labels(prediction, target), prediction > 0
            counts = [entries.sum(dim=0) for entries in (positive & labels, positive, labels)]
        return torch.cat(counts).double()

    def compute(self, state: Tensor) -> dict[str, float]:
        """Gives the score under the metric's name."""
        true_positive, predicted, actual = state.view(3, self.num_outputs)
        return {self.name: self._score(true_positive, predicted + actual)}

    @abstractmethod
    def _score(self, true_positive: Tensor, predicted_or_actual: Tensor) -> float:
        """F1 = 2 TP / ((TP + FP) + (TP + FN)), averaged over the outputs in some way."""


class F1Macro(_F1):
    """Mean of the classes' F1 scores. Equal to scikit-learn's `f1_score(average="macro")`.

    As there: a class that is neither predicted nor present does not take part; of a multi-label
    problem each label does, with F1 = 0.
    """

    name = "f1_macro"

    def _score(self, true_positive: Tensor, predicted_or_actual: Tensor) -> float:
        f1 = 2 * true_positive / predicted_or_actual.clamp(min=1)
        if self.problem == "multi_class":
            f1 = f1[predicted_or_actual > 0]
        return float(f1.mean())


class F1Micro(_F1):
    """F1 of the counts of all classes together. Equal to scikit-learn's `average="micro"`."""

    name = "f1_micro"

    def _score(self, true_positive: Tensor, predicted_or_actual: Tensor) -> float:
        total = float(predicted_or_actual.sum())
        return 2 * float(true_positive.sum()) / total if total else 0.0


def _labels(prediction: Tensor, target: Tensor) -> Tensor:
    # A single label per row may come without the second dimension.
    return target.reshape(prediction.shape).bool()
