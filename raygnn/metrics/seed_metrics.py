"""Metrics on seeds: counts of right predictions, errors of regression, order of scores."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from raygnn.metrics.base import ComparedMetric, Problem, ScoreCounts, SumMetric


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
        right, total = state.tolist()
        return {self.name: right / total if total else math.nan}


class ClassCounts(SumMetric):
    """A metric of counts by class or label: true positives, predicted and actual rows."""

    problems: tuple[Problem, ...] = ("multi_class", "multi_label")

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


class _F1(ClassCounts):
    def compute(self, state: Tensor) -> dict[str, float]:
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


class BalancedAccuracy(ClassCounts):
    """Mean of the recalls of the classes that occur; scikit-learn's `balanced_accuracy_score`."""

    name = "balanced_accuracy"
    problems = ("multi_class",)

    def compute(self, state: Tensor) -> dict[str, float]:
        true_positive, _, actual = state.view(3, self.num_outputs)
        is_present = actual > 0
        return {self.name: float((true_positive[is_present] / actual[is_present]).mean())}


def _labels(prediction: Tensor, target: Tensor) -> Tensor:
    # A single label per row may come without the second dimension.
    return target.reshape(prediction.shape).bool()


class MeanAbsoluteError(SumMetric):
    """Mean absolute error over rows and outputs; scikit-learn's `mean_absolute_error`."""

    name = "mae"
    problems = ("regression",)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sums the errors, and counts them."""
        predicted, actual = _float64(prediction, target)
        total = (predicted - actual).abs().sum()
        return torch.stack([total, total.new_tensor(float(actual.numel()))])

    def compute(self, state: Tensor) -> dict[str, float]:
        """Gives `mae`."""
        total, count = state.tolist()
        return {self.name: total / count if count else math.nan}


class NormalizedMeanAbsoluteError(MeanAbsoluteError):
    """Mean absolute error in standard deviations of the training targets, of one output.

    Attributes:
        scale: the standard deviation, which the task sets.
    """

    name = "nmae"
    scale = 1.0

    def compute(self, state: Tensor) -> dict[str, float]:
        """Gives `nmae`."""
        error = super().compute(state)[self.name]
        return {self.name: error / self.scale if self.scale else math.nan}


class RootMeanSquaredError(SumMetric):
    """Root of the mean squared error over rows and outputs."""

    name = "rmse"
    problems = ("regression",)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sums the squared errors, and counts them."""
        predicted, actual = _float64(prediction, target)
        total = (predicted - actual).square().sum()
        return torch.stack([total, total.new_tensor(float(actual.numel()))])

    def compute(self, state: Tensor) -> dict[str, float]:
        """Gives `rmse`."""
        total, count = state.tolist()
        return {self.name: math.sqrt(total / count) if count else math.nan}


class R2(SumMetric):
    """Share of the variance explained, averaged over outputs; scikit-learn's `r2_score`.

    The sums are of squares in float64. Targets whose mean is a million times their deviation leave
    4 digits; with a billion times it nothing is left. Centre such targets first.

    As in scikit-learn an output of constant targets scores 1 where predicted exactly, else 0; fewer
    than two rows score NaN.
    """

    name = "r2"
    problems = ("regression",)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sums, by output: rows, targets, their squares, squared errors."""
        predicted, actual = _float64(prediction, target)
        rows = actual.new_full((actual.shape[1],), float(len(actual)))
        sums = [actual.sum(dim=0), actual.square().sum(dim=0), (predicted - actual).square().sum(0)]
        return torch.cat([rows, *sums])

    def compute(self, state: Tensor) -> dict[str, float]:
        rows, total, squares, residual = state.view(4, self.num_outputs)
        if rows[0] < 2:
            return {self.name: math.nan}
        variation = (squares - total.square() / rows).clamp(min=0)
        is_constant = variation == 0
        score = 1 - residual / variation.masked_fill(is_constant, 1)
        score[is_constant] = (residual[is_constant] == 0).double()
        return {self.name: float(score.mean())}


def _float64(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    # A single value per row may come without the second dimension.
    return prediction.double(), target.reshape(prediction.shape).double()


class SeedRankingMetric(ComparedMetric):
    """A metric of binary scores, averaged over classes or labels.

    Two classes that exclude each other are one binary problem, class `positive` against the other.
    More classes are each judged against all others by their probability; labels, each by its logit.
    Averaged is over the classes or labels that have rows of both kinds: where all rows are of one
    kind nothing can be ordered. If that leaves none, or a score is NaN, the metric is NaN.
    """

    problems: tuple[Problem, ...] = ("multi_class", "multi_label")
    positive = 1

    @property
    def num_columns(self) -> int:
        """One for two classes, else one for each class or label."""
        is_binary = self.problem == "multi_class" and self.num_outputs == 2
        return 1 if is_binary else self.num_outputs

    def columns(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        scores = prediction.double()
        if self.problem == "multi_label":
            return scores, target.reshape(scores.shape).bool()
        target = target.flatten()
        if self.num_columns == 1:
            margin = scores[:, self.positive] - scores[:, 1 - self.positive]
            return margin.unsqueeze(1), (target == self.positive).unsqueeze(1)
        # The logarithm keeps the order of probabilities and tells apart those next to 1.
        one_hot = target.unsqueeze(1) == torch.arange(scores.shape[1], device=target.device)
        return scores.log_softmax(dim=1), one_hot

    def of_column(self, counts: ScoreCounts) -> float | None:
        """The metric of one class or label."""
        if counts.num_nan:
            return math.nan
        return self._of_counts(counts) if counts.has_both else None

    @abstractmethod
    def _of_counts(self, counts: ScoreCounts) -> float:
        """The metric of scores, some of which are positive and some negative."""


class AUROC(SeedRankingMetric):
    """Area under the ROC curve, macro-averaged; scikit-learn's `roc_auc_score`.

    The share of (positive, negative) pairs of rows that the scores order rightly, ties by half:
    counted exactly, in whole numbers up to 2^53 pairs.
    """

    name = "auroc"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.auc()


class AveragePrecision(SeedRankingMetric):
    """Average precision, macro-averaged; scikit-learn's `average_precision_score`.

    Of two classes with names it is that of the class with fewer training labels, of two numbers
    that of class 1. The sum over thresholds of precision times the step in recall, without
    interpolation.
    """

    name = "average_precision"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.average_precision()
