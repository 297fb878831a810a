"""The two kinds of metric, by what has to travel between ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

from torch import Tensor

from raygnn.errors import ConfigError

Problem = Literal["multi_class", "multi_label", "regression", "link_prediction"]


class Metric(ABC):
    """A number that describes predictions on a whole split, whichever rank made which of them.

    Args:
        num_outputs: classes, labels or regressed values: the width of a prediction.
        problem: what the outputs mean.
    Raises:
        ConfigError: the metric is not defined for the problem.
    """

    #: The metric's name in the config, and in what `compute` returns.
    name: str
    #: The problems that it is defined for.
    problems: tuple[Problem, ...]

    def __init__(self, num_outputs: int, problem: Problem) -> None:
        if problem not in self.problems:
            raise ConfigError(
                f"metrics.type={self.name!r} is invalid: it is not defined for a {problem} "
                f"problem, only for {', '.join(self.problems)}. Choose another metric."
            )
        self.num_outputs = num_outputs
        self.problem = problem


class SumMetric(Metric):
    """A metric of sums over rows: each batch gives a state, and states are added.

    The states of counting metrics are whole numbers in float64, exact up to 2^53 rows: any cut into
    batches and ranks, in any order, gives the same bits.
    """

    @abstractmethod
    def update(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Counts one batch.

        Args:
            prediction: [num_rows, num_outputs], logits or regressed values.
            target: [num_rows] (or [num_rows, 1]) classes, else [num_rows, num_outputs] values; the
                second dimension may be left out where it is 1.
        Returns:
            float64 [state size], to be added to other batches'.
        """

    @abstractmethod
    def compute(self, state: Tensor) -> dict[str, float]:
        """Gives the metric by name from the sum of all batches' states; NaN without any row."""


class GatheredMetric(Metric):
    """A metric that needs all rows together, since it compares them with each other."""

    @abstractmethod
    def compute(self, prediction: Tensor, target: Tensor) -> dict[str, float]:
        """Gives the metric by name.

        Args:
            prediction: [num_rows, num_outputs] of all ranks, in one fixed order.
            target: [num_rows] or [num_rows, num_outputs], beside it.
        """


class ComparedMetric(Metric):
    """A metric of how positive scores lie among all negative ones, of whichever row and rank.

    Only positives and counts travel, so a rank needs no memory for the rows of others; see
    `raygnn.metrics.link_classification.ComparedScores`.
    """

    @abstractmethod
    def compute(self, positives: Tensor, counts: Tensor) -> dict[str, float]:
        """Gives the metric by name from the positives and the summed counts of all ranks."""
