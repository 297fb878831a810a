"""Error diagnostics, computed once after the last evaluation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from raygnn.metrics.base import Problem, SumMetric
from raygnn.metrics.seed_metrics import ClassCounts

_NUM_BINS = 10  # of confidence
MAX_CONFUSED = 40  # classes whose pairs are counted: each batch holds a matrix


class Diagnostic(SumMetric):
    """Describes an evaluation by more than numbers, in `metrics.json` under its name."""

    _state: Tensor | None = None

    def compute(self, state: Tensor) -> dict[str, float]:
        """Keeps the sum for `describe`; gives no numbers."""
        self._state = state
        return {}

    def describe(self) -> Any:
        """A JSON value of the evaluation; None where none took place."""
        return None if self._state is None else self._of_state(self._state)

    @abstractmethod
    def _of_state(self, state: Tensor) -> Any:
        """Describes the sum of all batches' states."""


class ClassFigures(ClassCounts, Diagnostic):
    """Precision, recall, F1 and support of each class or label.

    Equal to scikit-learn's `precision_recall_fscore_support(zero_division=nan)`.

    Args:
        names: of the classes or labels.
    """

    name = "per_class"

    def __init__(self, num_outputs: int, problem: Problem, names: Sequence[str]) -> None:
        super().__init__(num_outputs, problem)
        self._names = names

    def _of_state(self, state: Tensor) -> dict[str, dict[str, float | int | None]]:
        true_positive, predicted, actual = state.view(3, self.num_outputs)
        columns = {
            "precision": true_positive / predicted,
            "recall": true_positive / actual,
            "f1": 2 * true_positive / (predicted + actual),
        }
        found: dict[str, dict[str, float | int | None]] = {}
        for label, name in enumerate(self._names):
            figures = {figure: float(column[label]) for figure, column in columns.items()}
            found[name] = {k: None if v != v else v for k, v in figures.items()}
            found[name]["support"] = int(actual[label])
        return found


class Confusion(Diagnostic):
    """Confusion matrix, as `sklearn.metrics.confusion_matrix`.

    Args:
        names: of the classes.
    """

    name = "confusion"
    problems = ("multi_class",)

    def __init__(self, num_outputs: int, problem: Problem, names: Sequence[str]) -> None:
        super().__init__(num_outputs, problem)
        self._names = names

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Counts the pairs of classes."""
        pairs = target.flatten() * self.num_outputs + prediction.argmax(dim=-1)
        return torch.bincount(pairs, minlength=self.num_outputs**2).double()

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        counts = state.view(self.num_outputs, self.num_outputs).long().tolist()
        return {"classes": list(self._names), "counts": counts}


class Calibration(Diagnostic):
    """Whether predictions of a probability of 0.8 are right in 80 % of the cases.

    Rows are put into ten bins of equal width by the probability of the predicted class. `error` is
    the expected calibration error: the mean over rows of the distance between the accuracy of a
    bin and its mean probability. Source: Guo et al. 2017, eq. 3.
    """

    name = "calibration"
    problems = ("multi_class",)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sums, by bin: rows, rows that are right, probabilities."""
        probability, predicted = prediction.double().softmax(dim=-1).max(dim=-1)
        is_right = (predicted == target.flatten()).double()
        bins = (probability * _NUM_BINS).long().clamp(0, _NUM_BINS - 1)
        return sums_by_bin(bins, _NUM_BINS, is_right, probability)

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        sums = state.view(3, _NUM_BINS)
        rows, right, probability = sums[:, sums[0] > 0]
        distance = (right - probability).abs().sum() / rows.sum()
        return {
            "error": float(distance),
            "rows": rows.long().tolist(),
            "accuracy": (right / rows).tolist(),
            "confidence": (probability / rows).tolist(),
        }


class ErrorsByValue(Diagnostic):
    """Errors of a regression by how large the actual value is.

    Args:
        bounds: float64 [num_bins - 1], ascending: a row is in the bin of as many bounds as are at
            most its value.
    """

    name = "errors_by_value"
    problems = ("regression",)

    def __init__(self, num_outputs: int, problem: Problem, bounds: Tensor) -> None:
        super().__init__(num_outputs, problem)
        self._bounds = bounds

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sums, by bin: rows, actual and predicted values, absolute errors."""
        predicted, actual = prediction.flatten().double(), target.flatten().double()
        bins = torch.bucketize(actual, self._bounds.to(actual.device), right=True)
        errors = (predicted - actual).abs()
        return sums_by_bin(bins, len(self._bounds) + 1, actual, predicted, errors)

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        sums = state.view(4, -1)
        rows, *totals = sums[:, sums[0] > 0]
        actual, predicted, error = ((total / rows).tolist() for total in totals)
        return {
            "rows": rows.long().tolist(),
            "actual": actual,
            "predicted": predicted,
            "mae": error,
        }


def sums_by_bin(bins: Tensor, num_bins: int, *columns: Tensor) -> Tensor:
    """float64 [(1 + num_columns) * num_bins], by bin the number of rows and the columns' sums.

    Args:
        bins: int64 [num_rows].
        columns: float64 [num_rows], at least one.
    """
    sums = columns[0].new_zeros((1 + len(columns), num_bins))
    for row, values in zip(sums, (torch.ones_like(columns[0]), *columns), strict=True):
        row.index_add_(0, bins, values)
    return sums.flatten()
