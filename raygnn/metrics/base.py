"""Base classes of metrics, exact comparison of scores, and an adapter for torchmetrics."""

from __future__ import annotations

import math
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from raygnn.errors import ConfigError

if TYPE_CHECKING:
    import torchmetrics


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
    #: Whether it counts a row by the row's weight. Others count each row once.
    weighs_rows = False

    def __init__(self, num_outputs: int, problem: Problem) -> None:
        if problem not in self.problems:
            rule = f"it is not defined for a {problem} problem, only for {', '.join(self.problems)}"
            remedy = "Choose another metric"
            raise ConfigError.invalid("metrics.type", self.name, rule, remedy, id="metric-problem")
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
            weight: float64 [num_rows], or None; only if the metric `weighs_rows`.
        """

    def state(self, prediction: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """`update`, with weights if the metric reads them."""
        if weight is None or not self.weighs_rows:
            return self.update(prediction, target)
        return self.update(prediction, target, weight)  # type: ignore[call-arg]

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

    Counts are integers, or sums of weights, in float64, which does not wrap around beyond 2^53.

    Attributes:
        positive: [num_levels], positives with this score.
        below, not_above: [num_levels], negatives below this score, and not above it.
    """

    positive: Tensor
    below: Tensor
    not_above: Tensor
    num_negatives: float
    num_scores: float
    num_nan: float

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
    see `ComparedScores`.
    """

    @property
    @abstractmethod
    def num_columns(self) -> int: ...

    @abstractmethod
    def columns(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def of_column(self, counts: ScoreCounts) -> float | None: ...

    def compute(self, values: Sequence[float | None]) -> dict[str, float]:
        """The mean over columns with a value, by name; NaN without any."""
        known = [value for value in values if value is not None]
        return {self.name: math.fsum(known) / len(known) if known else math.nan}


class TorchMetric(GatheredMetric):
    """Computes a torchmetrics metric on all rows together, with a fresh copy.

    The copy makes no collective calls, so one rank may compute it alone.

    Args:
        metric: its preds are the model's raw outputs, logits for classes.
        name: logged name. Default: the class name, as multiclass_f1_score.
    """

    problems = ("multi_class", "multi_label", "regression")

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

        Raises a ConfigError if the metric does not return numbers.
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
        rule = f"it gives {got}, not a number or a vector of numbers"
        remedy, name = "Choose another metric", type(self.metric).__name__
        raise ConfigError.invalid("metrics.type", name, rule, remedy, id="metric-not-number")


def as_metric(metric: Metric | torchmetrics.Metric, num_outputs: int, problem: Problem) -> Metric:
    if isinstance(metric, Metric):
        return metric
    return TorchMetric(metric, num_outputs, problem)


def _snake_case(name: str) -> str:
    # MulticlassF1Score -> multiclass_f1_score, BinaryAUROC -> binary_auroc
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


# Scores that a rank holds before it sorts them: 64 MB of float64.
_NUM_HELD = 1 << 23
_NUM_FIXED = 3  # numbers of scores, of NaNs and of negative scores


class ComparedScores:
    """Columns of scores: the positives, and counts of negatives below them.

    Beyond `num_held` scores, positives are kept, and negatives are sorted and written to a
    temporary file in blocks. Counts are exact for any number.
    """

    def __init__(self, num_columns: int, num_held: int = _NUM_HELD) -> None:
        self._num_held = num_held
        self._held: list[tuple[np.ndarray, ...]] = []
        self._num_now = 0
        self._totals = np.zeros((num_columns, _NUM_FIXED))
        self._positives: list[list[np.ndarray]] = [[] for _ in range(num_columns)]
        # Sorted negatives: a row of scores and, if they have weights, a row of weights.
        self._last = [np.empty((1, 0))] * num_columns
        self._file: IO[bytes] | None = None
        self._blocks: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(num_columns)]

    def add(self, scores: Tensor, is_positive: Tensor, weight: Tensor | None = None) -> None:
        """Adds one batch of this rank; [num_rows, num_columns], floating and bool. Weights are
        float64 [num_rows], above 0.
        """
        if self._num_now + scores.numel() > self._num_held:
            self._write()
        # Copies: a slice would keep the storage of a whole batch.
        parts = [scores.double(), is_positive, *([] if weight is None else [weight])]
        self._held.append(tuple(np.array(part.cpu()) for part in parts))
        self._num_now += scores.numel()

    def columns(
        self,
        gather: Callable[[Tensor], Tensor] = lambda rows: rows,
        add: Callable[[Tensor], Tensor] = lambda counts: counts,
    ) -> Iterator[ScoreCounts]:
        """Yields the counts of each column, with those of all ranks. Call it once."""
        self._last = self._cut()
        for column, parts in enumerate(self._positives):
            of_rank = np.concatenate([np.empty((0, 2)), *parts])
            scores, weights = gather(torch.from_numpy(of_rank)).T
            levels, of_level = scores.unique(return_inverse=True)
            positive = torch.zeros_like(levels).index_add_(0, of_level, weights)
            counts = add(self._count(column, levels.numpy()))
            num_scores, num_nan, num_negatives = counts[:_NUM_FIXED].tolist()
            below, not_above = counts[_NUM_FIXED:].view(2, -1)
            yield ScoreCounts(positive, below, not_above, num_negatives, num_scores, num_nan)
        if self._file is not None:
            self._file.close()

    def _count(self, column: int, levels: np.ndarray) -> Tensor:
        """float64: stored counts, then negatives of this rank below each level and not above."""
        below, not_above = np.zeros((2, len(levels)))
        for scores, *weights in self._sorted_blocks(column):
            ends = [np.searchsorted(scores, levels, side) for side in ("left", "right")]
            if weights:
                sums = np.append(0.0, np.cumsum(weights[0]))
                ends = [sums[each] for each in ends]
            below += ends[0]
            not_above += ends[1]
        return torch.from_numpy(np.concatenate([self._totals[column], below, not_above]))

    def _sorted_blocks(self, column: int) -> Iterator[np.ndarray]:
        yield self._last[column]
        for start, shape in self._blocks[column]:
            assert self._file is not None
            self._file.seek(start)
            yield np.frombuffer(self._file.read(8 * math.prod(shape))).reshape(shape)

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `columns` closes it
        for column, block in enumerate(self._cut()):
            self._blocks[column].append((self._file.tell(), block.shape))
            self._file.write(block.tobytes())

    def _cut(self) -> list[np.ndarray]:
        if not self._held:
            return [np.empty((1, 0))] * len(self._positives)
        scores, is_positive, *weights = map(np.concatenate, zip(*self._held, strict=True))
        self._held, self._num_now = [], 0
        negatives = []
        for column, (values, chosen) in enumerate(zip(scores.T, is_positive.T, strict=True)):
            of_rows = weights[0] if weights else np.ones(len(values))
            self._positives[column].append(np.stack([values, of_rows], axis=1)[chosen])
            others = values[~chosen]
            if weights:
                order = np.argsort(others)
                negatives.append(np.stack([others[order], of_rows[~chosen][order]]))
            else:
                negatives.append(np.sort(others)[None])
            of_column = (len(values), np.isnan(values).sum(), of_rows[~chosen].sum())
            self._totals[column] += np.array(of_column)
        return negatives


def compare(metrics: Sequence[ComparedMetric], columns: Iterator[ScoreCounts]) -> dict[str, float]:
    values = [[metric.of_column(counts) for metric in metrics] for counts in columns]
    results: dict[str, float] = {}
    for index, metric in enumerate(metrics):
        results.update(metric.compute([row[index] for row in values]))
    return results
