"""Metrics on seeds: correct predictions, errors of regression, order of scores."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from raygnn.device_memory import copied
from raygnn.metrics.base import ComparedMetric, Problem, ScoreCounts, SumMetric


class Accuracy(SumMetric):
    """Share of correctly predicted rows. In a multi-label row, all labels must be correct.

    Equals scikit-learn's `accuracy_score`. The largest logit predicts a class, a positive logit a
    label.
    """

    name = "accuracy"
    problems = ("multi_class", "multi_label")
    weighs_rows = True

    def update(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        if self.problem == "multi_class":
            right = prediction.argmax(dim=-1) == target.flatten()
        else:
            right = ((prediction > 0) == _labels(prediction, target)).all(dim=-1)
        rows = torch.ones_like(right, dtype=torch.float64) if weight is None else weight
        return torch.stack([(right * rows).sum(), rows.sum()])

    def compute(self, state: Tensor) -> dict[str, float]:
        right, total = state.tolist()
        return {self.name: right / total if total else math.nan}


class ClassCounts(SumMetric):
    """A metric of counts by class or label: true positives, predicted and actual rows."""

    problems: tuple[Problem, ...] = ("multi_class", "multi_label")
    weighs_rows = True

    def update(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        rows = weight
        if rows is None:
            rows = prediction.new_ones(len(prediction), dtype=torch.float64)
        if self.problem == "multi_class":
            predicted, target = prediction.argmax(dim=-1), target.flatten().long()
            counts = [
                counts_by_class(target, self.num_outputs, rows * (predicted == target)),
                counts_by_class(predicted, self.num_outputs, rows),
                counts_by_class(target, self.num_outputs, rows),
            ]
        else:
            labels, positive = _labels(prediction, target), prediction > 0
            parts = (positive & labels, positive, labels)
            counts = [(entries * rows.unsqueeze(1)).sum(dim=0) for entries in parts]
        return torch.cat(counts)


def counts_by_class(classes: Tensor, num_classes: int, weight: Tensor | None = None) -> Tensor:
    """Rows of each class, or their weights, float64 [num_classes]. On a device without a wait,
    unlike `bincount`.
    """
    rows = torch.ones_like(classes, dtype=torch.float64) if weight is None else weight
    return rows.new_zeros(num_classes).index_add_(0, classes, rows)


class _F1(ClassCounts):
    def compute(self, state: Tensor) -> dict[str, float]:
        true_positive, predicted, actual = state.view(3, self.num_outputs)
        return {self.name: self._score(true_positive, predicted + actual)}

    @abstractmethod
    def _score(self, true_positive: Tensor, predicted_or_actual: Tensor) -> float:
        """F1 = 2 TP / ((TP + FP) + (TP + FN)), averaged over the outputs."""


class F1Macro(_F1):
    """Mean of the classes' F1 scores. Equals scikit-learn's `f1_score(average="macro")`.

    Classes that are neither predicted nor present are left out; such labels of a multi-label
    problem count with F1 = 0.
    """

    name = "f1_macro"

    def _score(self, true_positive: Tensor, predicted_or_actual: Tensor) -> float:
        f1 = 2 * true_positive / predicted_or_actual.where(predicted_or_actual > 0, 1)
        if self.problem == "multi_class":
            f1 = f1[predicted_or_actual > 0]
        return float(f1.mean())


class F1Micro(_F1):
    """F1 of the counts of all classes together. Equals scikit-learn's `average="micro"`."""

    name = "f1_micro"

    def _score(self, true_positive: Tensor, predicted_or_actual: Tensor) -> float:
        total = float(predicted_or_actual.sum())
        return 2 * float(true_positive.sum()) / total if total else 0.0


class BalancedAccuracy(ClassCounts):
    """Mean recall of the classes that occur, as scikit-learn's `balanced_accuracy_score`."""

    name = "balanced_accuracy"
    problems = ("multi_class",)

    def compute(self, state: Tensor) -> dict[str, float]:
        true_positive, _, actual = state.view(3, self.num_outputs)
        is_present = actual > 0
        return {self.name: float((true_positive[is_present] / actual[is_present]).mean())}


def _labels(prediction: Tensor, target: Tensor) -> Tensor:
    # A single label per row may come without the second dimension.
    return target.reshape(prediction.shape).bool()


class _MeanError(SumMetric):
    problems = ("regression",)
    weighs_rows = True

    def update(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        predicted, actual = _float64(prediction, target)
        errors = self._of_errors(predicted - actual)
        if weight is None:
            total = errors.sum()
            return torch.stack([total, total.new_full((), float(actual.numel()))])
        total = (errors.reshape(len(errors), -1).mean(dim=1) * weight).sum()
        return torch.stack([total, weight.sum()])

    @abstractmethod
    def _of_errors(self, error: Tensor) -> Tensor: ...

    def compute(self, state: Tensor) -> dict[str, float]:
        total, count = state.tolist()
        return {self.name: total / count if count else math.nan}


class MeanAbsoluteError(_MeanError):
    """Mean absolute error over rows and outputs, as scikit-learn's `mean_absolute_error`."""

    name = "mae"

    def _of_errors(self, error: Tensor) -> Tensor:
        return error.abs()


class NormalizedMeanAbsoluteError(MeanAbsoluteError):
    """Mean absolute error in standard deviations of the training targets, of one output.

    Attributes:
        scale: the standard deviation; the task sets it.
    """

    name = "nmae"
    scale = 1.0

    def compute(self, state: Tensor) -> dict[str, float]:
        error = super().compute(state)[self.name]
        return {self.name: error / self.scale if self.scale else math.nan}


class RootMeanSquaredError(_MeanError):
    """Root of the mean squared error over rows and outputs."""

    name = "rmse"

    def _of_errors(self, error: Tensor) -> Tensor:
        return error.square()

    def compute(self, state: Tensor) -> dict[str, float]:
        return {self.name: math.sqrt(super().compute(state)[self.name])}


class R2(SumMetric):
    """Share of explained variance, averaged over outputs, as scikit-learn's `r2_score`.

    Computed from float64 sums of squares of differences from `center`, which lose digits if the
    mean of the targets is many deviations away from it.

    As in scikit-learn, an output with constant targets scores 1 if predicted exactly, else 0; fewer
    than two rows score NaN.

    Attributes:
        center: the mean of the training targets, by output; the task sets it.
    """

    name = "r2"
    problems = ("regression",)
    weighs_rows = True
    center: Sequence[float] = (0.0,)

    def update(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        predicted, actual = _float64(prediction, target)
        ones = torch.ones_like(actual)
        rows = ones if weight is None else ones * weight.unsqueeze(1)
        center = torch.tensor(self.center, dtype=torch.float64)
        centered = actual - copied(center, actual.device)
        columns = (ones, rows, rows * centered, rows * centered.square())
        sums = [column.sum(dim=0) for column in (*columns, rows * (predicted - actual).square())]
        return torch.cat(sums)

    def compute(self, state: Tensor) -> dict[str, float]:
        count, rows, total, squares, residual = state.view(5, self.num_outputs)
        if count[0] < 2:
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

    Two exclusive classes are one binary problem, class `positive` against the other. More classes
    are each compared with all others by probability; labels, each by logit. The average is over
    classes or labels that have rows of both kinds. Without any, or if a score is NaN, the metric is
    NaN.
    """

    problems: tuple[Problem, ...] = ("multi_class", "multi_label")
    weighs_rows = True
    positive = 1

    @property
    def num_columns(self) -> int:
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
        # The logarithm keeps the order of probabilities and distinguishes values close to 1.
        one_hot = target.unsqueeze(1) == torch.arange(scores.shape[1], device=target.device)
        return scores.log_softmax(dim=1), one_hot

    def of_column(self, counts: ScoreCounts) -> float | None:
        if counts.num_nan:
            return math.nan
        return self._of_counts(counts) if counts.has_both else None

    @abstractmethod
    def _of_counts(self, counts: ScoreCounts) -> float: ...


class AUROC(SeedRankingMetric):
    """Area under the ROC curve, macro-averaged, as scikit-learn's `roc_auc_score`.

    The share of correctly ordered (positive, negative) pairs, where ties count half: exact integer
    counts up to 2^53 pairs.
    """

    name = "auroc"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.auc()


class AveragePrecision(SeedRankingMetric):
    """Average precision, macro-averaged, as scikit-learn's `average_precision_score`.

    The sum over thresholds of precision times the step in recall, without interpolation. The
    positive one of two classes is the rarer in training if they have names, else class 1.
    """

    name = "average_precision"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.average_precision()
