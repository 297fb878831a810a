"""Base classes of metrics, and an adapter for torchmetrics."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from raygnn.errors import ConfigError

if TYPE_CHECKING:
    import torchmetrics  # takes seconds to import: only a config that names it pays for that


Problem = Literal["multi_class", "multi_label", "regression", "link_prediction"]


class Metric(ABC):
    """A metric of a whole split, for predictions from any ranks.

    Args:
        num_outputs: width of a prediction: classes, labels or regressed values.
        problem: meaning of the outputs.
    Raises:
        ConfigError: the metric is not defined for the problem.
    """

    #: The metric's name in the config, and in what `compute` returns.
    name: str
    #: The problems that it is defined for.
    problems: tuple[Problem, ...]

    def __init__(self, num_outputs: int, problem: Problem) -> None:
        if problem not in self.problems:
            raise ConfigError.invalid(
                "metrics.type",
                self.name,
                (f"it is not defined for a {problem} problem, only for {', '.join(self.problems)}"),
                "Choose another metric",
                id="metric-problem",
            )
        self.num_outputs = num_outputs
        self.problem = problem


class SumMetric(Metric):
    """A metric of sums over rows: each batch has a state, and states are added.

    States of counting metrics are integers in float64, exact up to 2^53 rows, so the result has the
    same bits for any batches and ranks.
    """

    @abstractmethod
    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The state of one batch, float64 [state size], to be added to others.

        Args:
            prediction: [num_rows, num_outputs], logits or regressed values.
            target: [num_rows] (or [num_rows, 1]) classes, otherwise [num_rows, num_outputs] values;
                a second dimension of 1 may be missing.
        """

    @abstractmethod
    def compute(self, state: Tensor) -> dict[str, float]:
        """The metric by name from the sum of all states; NaN without rows."""


class GatheredMetric(Metric):
    """A metric that compares rows with each other, and needs them all together."""

    @abstractmethod
    def compute(self, prediction: Tensor, target: Tensor) -> dict[str, float]:
        """The metric by name.

        Args:
            prediction: [num_rows, num_outputs] of all ranks, in one fixed order.
            target: [num_rows] or [num_rows, num_outputs], in the same order.
        """

    def compute_rows(self, ids: Tensor, prediction: Tensor, target: Tensor) -> dict[str, float]:
        """`compute` for rows with ids, int64 [num_rows], ascending."""
        return self.compute(prediction, target)


@dataclass(frozen=True)
class ScoreCounts:
    """One column of scores, by distinct score of a positive, ascending.

    Counts are integers in float64, which does not wrap around beyond 2^53.

    Attributes:
        positive: [num_levels], positives with this score.
        below, not_above: [num_levels], negatives below this score, and not above it.
    """

    positive: Tensor
    below: Tensor
    not_above: Tensor
    num_negatives: int
    num_scores: int
    num_nan: int

    @property
    def has_both(self) -> bool:
        return len(self.positive) > 0 and self.num_negatives > 0

    def auc(self) -> float:
        """Share of correctly ordered (positive, negative) pairs; ties count half."""
        twice_right = (self.positive * (self.below + self.not_above)).sum()
        return float(twice_right / 2 / (self.positive.sum() * self.num_negatives))

    def average_precision(self) -> float:
        """Sum over thresholds of precision times the step in recall."""
        positive = self.positive.flip(0)
        positive_above = positive.cumsum(0)
        precision = positive_above / (positive_above + (self.num_negatives - self.below).flip(0))
        return float((precision * positive).sum() / positive.sum())


class ComparedMetric(Metric):
    """A metric of positive scores among all negative scores of all ranks.

    Rows become columns of scores, some of them positive. Ranks exchange only positives and counts;
    see `raygnn.metrics.compared_scores.ComparedScores`.
    """

    @property
    @abstractmethod
    def num_columns(self) -> int: ...

    @abstractmethod
    def columns(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def of_column(self, counts: ScoreCounts) -> float | None:
        """The metric of one column; None without positives or negatives."""

    def compute(self, values: Sequence[float | None]) -> dict[str, float]:
        """The mean over columns with a value, by name; NaN without any."""
        found = [value for value in values if value is not None]
        return {self.name: math.fsum(found) / len(found) if found else math.nan}


_PROBLEMS: tuple[Problem, ...] = ("multi_class", "multi_label", "regression")


class TorchMetric(GatheredMetric):
    """Computes a torchmetrics metric on all rows together, with a fresh copy.

    The copy makes no collective calls, so one rank may compute it alone.

    Args:
        metric: its preds are the model's raw outputs, logits for classes.
        name: logged name. Default: the class name, as multiclass_f1_score.
    """

    problems = _PROBLEMS

    def __init__(
        self,
        metric: torchmetrics.Metric,
        num_outputs: int,
        problem: Problem,
        name: str | None = None,
    ) -> None:
        self.name = name or _snake_case(type(metric).__name__)
        super().__init__(num_outputs, problem)
        self.metric = metric

    def compute(self, prediction: Tensor, target: Tensor) -> dict[str, float]:
        """The value under the metric's name; several values under name/key.

        Raises:
            ConfigError: the metric does not return numbers.
        """
        metric = self.metric.clone().to(prediction.device)
        metric.reset()
        metric.sync_on_compute = False
        metric.dist_sync_on_step = False
        if prediction.dim() == 2 and prediction.shape[1] == 1 and target.dim() == 1:
            prediction = prediction.squeeze(1)
        metric.update(prediction, target)
        value = metric.compute()
        named = value if isinstance(value, dict) else {"": value}
        results: dict[str, float] = {}
        for key, entry in named.items():
            name = f"{self.name}/{key}" if key else self.name
            results.update(self._numbers(name, entry))
        return results

    def _numbers(self, name: str, value: object) -> dict[str, float]:
        if isinstance(value, Tensor) and value.numel() == 1:
            return {name: float(value)}
        if isinstance(value, Tensor) and value.dim() == 1:
            return {f"{name}/{i}": float(entry) for i, entry in enumerate(value)}
        got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError.invalid(
            "metrics.type",
            type(self.metric).__name__,
            f"it gives {got}, not a number or a vector of numbers",
            "Choose a metric that can be logged",
            id="metric-not-number",
        )


def as_metric(metric: Metric | torchmetrics.Metric, num_outputs: int, problem: Problem) -> Metric:
    if isinstance(metric, Metric):
        return metric
    return TorchMetric(metric, num_outputs, problem)


def _snake_case(name: str) -> str:
    # MulticlassF1Score -> multiclass_f1_score, BinaryAUROC -> binary_auroc
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
