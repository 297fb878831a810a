"""Error diagnostics, computed once after the last evaluation."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.device_memory import copied
from raygnn.metrics.base import (
    ComparedMetric,
    ComparedScores,
    GatheredMetric,
    Metric,
    Problem,
    SumMetric,
    compare,
)
from raygnn.metrics.seed_metrics import ClassCounts, counts_by_class

_NUM_BINS = 10  # bins of confidence
MAX_CONFUSED = 40  # classes whose pairs are counted: each batch holds a matrix


class Diagnostic(SumMetric):
    """A description of an evaluation, saved in `metrics.json` under its name."""

    _state: Tensor | None = None

    def compute(self, state: Tensor) -> dict[str, float]:
        self._state = state
        return {}

    def describe(self) -> Any:
        """A JSON value; None without an evaluation."""
        return None if self._state is None else self._of_state(self._state)

    @abstractmethod
    def _of_state(self, state: Tensor) -> Any: ...


class ClassFigures(ClassCounts, Diagnostic):
    """Precision, recall, F1 and support of each class or label.

    Equals scikit-learn's `precision_recall_fscore_support(zero_division=nan)`.
    """

    name = "per_class"
    weighs_rows = False

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
        tables: dict[str, dict[str, float | int | None]] = {}
        for label, name in enumerate(self._names):
            figures = {figure: float(column[label]) for figure, column in columns.items()}
            tables[name] = {k: None if v != v else v for k, v in figures.items()}
            tables[name]["support"] = int(actual[label])
        return tables


class Confusion(Diagnostic):
    """Confusion matrix, as in `sklearn.metrics.confusion_matrix`."""

    name = "confusion"
    problems = ("multi_class",)

    def __init__(self, num_outputs: int, problem: Problem, names: Sequence[str]) -> None:
        super().__init__(num_outputs, problem)
        self._names = names

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        pairs = target.flatten() * self.num_outputs + prediction.argmax(dim=-1)
        return counts_by_class(pairs, self.num_outputs**2)

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        counts = state.view(self.num_outputs, self.num_outputs).long().tolist()
        return {"classes": list(self._names), "counts": counts}


class Calibration(Diagnostic):
    """Accuracy by predicted probability, in ten bins of equal width.

    `error` is the expected calibration error: the mean over rows of the distance between the
    accuracy of a bin and its mean probability. Source: Guo et al. 2017, eq. 3. `by_chance` is the
    error to expect of exactly calibrated probabilities with as many independent rows in each bin:
    the mean distance of a normal variable from its mean.
    """

    name = "calibration"
    problems = ("multi_class",)

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        probability, predicted = prediction.double().softmax(dim=-1).max(dim=-1)
        is_right = (predicted == target.flatten()).double()
        bins = (probability * _NUM_BINS).long().clamp(0, _NUM_BINS - 1)
        return sums_by_bin(bins, _NUM_BINS, is_right, probability)

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        sums = state.view(3, _NUM_BINS)
        rows, right, probability = sums[:, sums[0] > 0]
        distance = (right - probability).abs().sum() / rows.sum()
        confidence = probability / rows
        variance = (confidence * (1 - confidence)).clamp(min=0)
        spread = (2 / math.pi * rows * variance).sqrt()
        return {
            "error": float(distance),
            "by_chance": float(spread.sum() / rows.sum()),
            "rows": rows.long().tolist(),
            "accuracy": (right / rows).tolist(),
            "confidence": confidence.tolist(),
        }


class ErrorsByValue(Diagnostic):
    """Errors of a regression by the size of the actual value.

    Args:
        bounds: float64 [num_bins - 1], ascending lower bounds of the bins after the first.
    """

    name = "errors_by_value"
    problems = ("regression",)

    def __init__(self, num_outputs: int, problem: Problem, bounds: Tensor) -> None:
        super().__init__(num_outputs, problem)
        self._bounds = bounds

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        predicted, actual = prediction.flatten().double(), target.flatten().double()
        bins = torch.bucketize(actual, copied(self._bounds, actual.device), right=True)
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


class Coverage(Diagnostic):
    """Share of the values that lie in their ranges, and the mean width of these, by prediction.

    Args:
        bounds: float64 [num_bins - 1], ascending least predictions of the bins after the first.
        find_ends: lower and upper ends of predictions.
    """

    name = "coverage"
    problems = ("regression",)

    def __init__(
        self,
        num_outputs: int,
        problem: Problem,
        bounds: Tensor,
        find_ends: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        super().__init__(num_outputs, problem)
        self._bounds, self._find_ends = bounds, find_ends

    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        predicted = prediction.detach().cpu().flatten()
        actual = target.cpu().flatten().to(predicted.dtype)
        low, high = map(torch.from_numpy, self._find_ends(predicted.numpy()))
        bins = torch.bucketize(predicted.double(), self._bounds, right=True)
        contained = ((low <= actual) & (actual <= high)).double()
        width = (high - low).double()
        return sums_by_bin(bins, len(self._bounds) + 1, contained, width, predicted.double())

    def _of_state(self, state: Tensor) -> dict[str, Any]:
        sums = state.view(4, -1)
        rows, contained, width, predicted = sums[:, sums[0] > 0]
        return {
            "share": float(contained.sum() / rows.sum()),
            "rows": rows.long().tolist(),
            "predicted": (predicted / rows).tolist(),
            "contained": (contained / rows).tolist(),
            "width": (width / rows).tolist(),
        }


class TopRows(GatheredMetric):
    """Rows of a class among those with its highest probabilities, for lift, gain and thresholds.

    Args:
        positive: the class, of two.
        name_of_class: as shown.
    """

    name = "top_rows"
    problems = ("multi_class",)

    def __init__(
        self, num_outputs: int, problem: Problem, positive: int, name_of_class: str
    ) -> None:
        super().__init__(num_outputs, problem)
        self._positive, self._class = positive, name_of_class
        self._found: dict[str, Any] | None = None

    def compute(self, prediction: Tensor, target: Tensor) -> dict[str, float]:
        scores = prediction.double().softmax(dim=-1)[:, self._positive].numpy()
        is_positive = target.flatten().numpy() == self._positive
        if is_positive.any() and not np.isnan(scores).any():
            order = np.argsort(-scores, kind="stable")
            scores, right = scores[order], np.cumsum(is_positive[order])
            # Rows with equal probabilities have no order: each is as often positive.
            ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
            rows = np.maximum(np.ceil(_TOP_SHARES * len(scores) - 1e-9), 1).astype(np.int64)
            found = np.interp(rows, np.append(0, ends + 1), np.append(0, right[ends]))
            self._found = {
                "class": self._class,
                "num_rows": len(scores),
                "num_positive": int(right[-1]),
                "share": _TOP_SHARES.tolist(),
                "rows": rows.tolist(),
                "positive": found.tolist(),
                "least_probability": scores[rows - 1].tolist(),
            }
        return {}

    def describe(self) -> Any:
        """By share of the rows, from the highest probability down: their number, how many are
        positive, and the least probability.
        """
        return self._found


_TOP_SHARES = np.append([0.001, 0.002, 0.005], np.arange(1, 101) / 100)


class _MetricsOfParts(GatheredMetric):
    """Metrics of parts of the rows or outputs, by column.

    Args:
        weights: float64 [num_rows], by row id, or None.
    """

    def __init__(self, num_outputs: int, problem: Problem, weights: np.ndarray | None) -> None:
        super().__init__(num_outputs, problem)
        self._weights = weights
        self._found: dict[str, list[Any]] = {}

    def compute(self, prediction: Tensor, target: Tensor) -> dict[str, float]:
        raise AssertionError

    def _add(
        self,
        columns: dict[str, list[Any]],
        metrics: Sequence[Metric],
        ids: Tensor,
        prediction: Tensor,
        target: Tensor,
    ) -> None:
        """Adds the metrics of a part, in columns of their names."""
        weight = None if self._weights is None else torch.from_numpy(self._weights[ids.numpy()])
        for metric, value in metrics_of(metrics, prediction, target, weight).items():
            columns.setdefault(metric, []).append(None if value != value else value)


class MetricsOverTime(_MetricsOfParts):
    """Metrics by month, quarter or year of the rows: the finest with at most 40 periods.

    Args:
        metrics: metrics to compute.
        times: int64 [num_rows], microseconds since 1970, by row id.
        weights: float64 [num_rows], by row id, or None.
    """

    name = "over_time"
    problems = ("multi_class", "multi_label", "regression")

    def __init__(
        self,
        num_outputs: int,
        problem: Problem,
        metrics: Sequence[Metric],
        times: np.ndarray,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(num_outputs, problem, weights)
        self._metrics, self._times = metrics, times

    def compute_rows(self, ids: Tensor, prediction: Tensor, target: Tensor) -> dict[str, float]:
        months = self._times[ids.numpy()].astype("M8[us]").astype("M8[M]")
        spans = {name: months.astype(np.int64) // num for name, num in _PERIODS.items()}
        counts = {name: len(np.unique(span)) for name, span in spans.items()}
        name = next((name for name in _PERIODS if counts[name] <= _MAX_PERIODS), "year")
        columns: dict[str, list[Any]] = {name: [], "rows": []}
        for period in np.unique(spans[name]):
            rows = torch.from_numpy(spans[name] == period)
            columns[name].append(_period_name(name, int(period)))
            columns["rows"].append(int(rows.sum()))
            self._add(columns, self._metrics, ids[rows], prediction[rows], target[rows])
        self._found = columns
        return {}

    def describe(self) -> Any:
        """First month or name, `rows` and metrics of each period; None with fewer than two."""
        return self._found if len(self._found.get("rows", ())) > 1 else None


class MetricsByOutput(_MetricsOfParts):
    """Metrics of each of several labels or numbers, such as the horizons of a forecast.

    Args:
        metrics: metrics of one output, for each output.
        names: of the outputs.
        weights: float64 [num_rows], by row id, or None.
    """

    name = "by_output"
    problems = ("multi_label", "regression")

    def __init__(
        self,
        problem: Problem,
        metrics: Sequence[Sequence[Metric]],
        names: Sequence[str],
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(len(names), problem, weights)
        self._metrics, self._names = metrics, names

    def compute_rows(self, ids: Tensor, prediction: Tensor, target: Tensor) -> dict[str, float]:
        columns: dict[str, list[Any]] = {"output": [*self._names]}
        for i, metrics in enumerate(self._metrics):
            part = slice(i, i + 1)
            self._add(columns, metrics, ids, prediction[:, part], target[:, part])
        self._found = columns
        return {}

    def describe(self) -> Any:
        """Names and metrics by output; None without an evaluation."""
        return self._found or None


#: Diagnostics that an evaluation saves in `metrics.json`, besides its metrics.
Described = Diagnostic | MetricsByOutput | MetricsOverTime | TopRows

_PERIODS = {"month": 1, "quarter": 3, "year": 12}
_MAX_PERIODS = 40


def _period_name(name: str, period: int) -> str:
    month = np.datetime64(period * _PERIODS[name], "M")
    year, number = str(month).split("-")
    named = {"month": str(month), "quarter": f"{year} Q{(int(number) + 2) // 3}", "year": year}
    return named[name]


def metrics_of(
    metrics: Sequence[Any], prediction: Tensor, target: Tensor, weight: Tensor | None = None
) -> dict[str, float]:
    """Metrics of sums and of compared scores, for rows in one process, perhaps with weights,
    float64 [num_rows].
    """
    values: dict[str, float] = {}
    for metric in metrics:
        if isinstance(metric, SumMetric):
            values |= metric.compute(metric.state(prediction, target, weight))
    compared = [metric for metric in metrics if isinstance(metric, ComparedMetric)]
    if compared:
        scores = ComparedScores(compared[0].num_columns)
        scores.add(*compared[0].columns(prediction, target), weight)
        values |= compare(compared, scores.columns())
    return values


def sums_by_bin(bins: Tensor, num_bins: int, *columns: Tensor) -> Tensor:
    """Number of rows and sums of columns by bin, float64 [(1 + num_columns) * num_bins]."""
    sums = columns[0].new_zeros((1 + len(columns), num_bins))
    for row, values in zip(sums, (torch.ones_like(columns[0]), *columns), strict=True):
        row.index_add_(0, bins, values)
    return sums.flatten()
