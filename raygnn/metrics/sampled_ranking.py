"""Ranking and classification metrics among sampled candidates, independent of batches."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from raygnn.errors import ConfigError, TrainingError
from raygnn.metrics.base import ComparedMetric, Problem, ScoreCounts, SumMetric

STANDARD_KS = (1, 5, 10, 50, 100, 500)


def check_scores(num_bad: int, num_scores: int) -> None:
    """Raises a TrainingError for NaN scores, which would look like the best or worst."""
    if num_bad:
        raise TrainingError(
            f"{num_bad} of {num_scores} scores are NaN, so no link ranks. Lower the learning rate, "
            "clip gradients (training.clip_grad_norm), or train in fp32. [metric-nan]"
        )


def check_ks(ks: Sequence[int] | None, limit: int) -> tuple[int, ...]:
    """The k of Hits@k; by default those of `STANDARD_KS` that are at most `limit`, the candidates.

    Raises a ConfigError if one exceeds it.
    """
    if ks is None:
        return tuple(k for k in STANDARD_KS if k <= limit)
    if beyond := [k for k in ks if k > limit]:
        rule = f"{beyond[0]} is larger than the number of candidates, {limit}"
        remedy = f"Set at most {limit}"
        raise ConfigError.invalid("metrics.args.ks", list(ks), rule, remedy, id="metric-ks-range")
    return tuple(ks)


def sampled_ranks(scores: Tensor) -> Tensor:
    """Ranks of positives among their candidates, from 1, float64 [num_positives]; a tie counts
    half.

    Args:
        scores: [num_positives, 1 + num_candidates]. Column 0 is the positive; -inf excludes a
            candidate.
    """
    positive, candidate = scores[:, :1], scores[:, 1:]
    num_greater = (candidate > positive).sum(dim=1)
    num_equal = ((candidate == positive) & (candidate > -torch.inf)).sum(dim=1)
    return 1 + num_greater.double() + 0.5 * num_equal.double()


class _SampledRanking(SumMetric):
    """A mean over positives of a function of their rank.

    Args:
        num_outputs: candidates of each positive, itself included.
    """

    problems = ("link_prediction",)

    def __init__(self, num_outputs: int, problem: Problem = "link_prediction") -> None:
        super().__init__(num_outputs, problem)

    def update(self, prediction: Tensor, target: Tensor | None = None) -> Tensor:
        """The state of one batch of scores, as in `sampled_ranks`. `target` is not read."""
        num_nan = prediction.isnan().sum().double().unsqueeze(0)
        return torch.cat([num_nan, self._of_ranks(sampled_ranks(prediction))])

    def compute(self, state: Tensor) -> dict[str, float]:
        """The metric by name. Raises a TrainingError if a score was NaN."""
        num_nan, num_rows = state[:2].tolist()
        check_scores(int(num_nan), int(num_rows) * self.num_outputs)
        return self._of_state(state[1:])

    @abstractmethod
    def _of_ranks(self, ranks: Tensor) -> Tensor:
        """The state of ranks, float64 [num_positives], which begins with their number."""

    @abstractmethod
    def _of_state(self, state: Tensor) -> dict[str, float]: ...


class MeanReciprocalRank(_SampledRanking):
    """Mean of 1 / rank of each positive among its sampled candidates; ties count half.

    The result has the same bits for any batches and ranks.
    """

    name = "mrr"

    def _of_ranks(self, ranks: Tensor) -> Tensor:
        return exact_state(1 / ranks.unsqueeze(1))

    def _of_state(self, state: Tensor) -> dict[str, float]:
        return {self.name: exact_means(state)[0]}


class Hits(_SampledRanking):
    """Share of positives with a rank of at most k among their sampled candidates; ties count half.

    Args:
        num_outputs: candidates that each positive competes with.
        ks: default: those of 1, 5, 10, 50, 100, 500 that are at most `num_outputs`.
    Raises:
        ConfigError: a k is larger than the number of candidates.
    """

    name = "hits"

    def __init__(
        self,
        num_outputs: int,
        problem: Problem = "link_prediction",
        ks: Annotated[Sequence[PositiveInt], Field(min_length=1)] | None = None,
    ) -> None:
        super().__init__(num_outputs, problem)
        self.ks = check_ks(ks, num_outputs)

    def _of_ranks(self, ranks: Tensor) -> Tensor:
        hits = torch.stack([ranks <= k for k in self.ks]).sum(dim=1)
        return torch.cat([hits.new_full((1,), len(ranks)), hits]).double()

    def _of_state(self, state: Tensor) -> dict[str, float]:
        total, *hits = state.tolist()
        return {
            f"{self.name}@{k}": hit / total if total else float("nan")
            for k, hit in zip(self.ks, hits, strict=True)
        }


# A value is rounded to a multiple of 2^-52 and split into two whole numbers of 26 bits, whose
# float64 sums are exact up to 2^27 = 134 million rows.
_BITS, _HALF_BITS = 52, 26


def exact_state(values: Tensor) -> Tensor:
    """Sums rows without rounding, so that states of batches can be added in any order.

    Args:
        values: [num_rows, num_means], in [0, 1].
    Returns:
        float64 [1 + 2 * num_means], integers: rows, then upper and lower halves.
    """
    fixed = (values.double() * 2.0**_BITS).round().long()
    halves = [fixed >> _HALF_BITS, fixed & ((1 << _HALF_BITS) - 1)]
    sums = [half.sum(dim=0) for half in halves]
    return torch.cat([fixed.new_full((1,), len(values)), *sums]).double()


def exact_means(state: Tensor) -> list[float]:
    """The means from the sum of all states; NaN without rows."""
    num_rows, *halves = (int(entry) for entry in state.tolist())
    upper, lower = halves[: len(halves) // 2], halves[len(halves) // 2 :]
    if not num_rows:
        return [math.nan] * len(upper)
    # Python's quotient of whole numbers is rounded once.
    return [
        ((high << _HALF_BITS) + low) / (num_rows << _BITS)
        for high, low in zip(upper, lower, strict=True)
    ]


class _LinkClassification(ComparedMetric):
    problems = ("link_prediction",)
    num_columns = 1

    def columns(self, prediction: Tensor, target: Tensor | None = None) -> tuple[Tensor, Tensor]:
        is_positive = torch.zeros_like(prediction, dtype=torch.bool)
        is_positive[:, 0] = True
        takes_part = is_positive | (prediction != -torch.inf)
        return prediction[takes_part].unsqueeze(1), is_positive[takes_part].unsqueeze(1)

    def of_column(self, counts: ScoreCounts) -> float | None:
        check_scores(int(counts.num_nan), int(counts.num_scores))
        return self._of_counts(counts) if counts.has_both else None

    @abstractmethod
    def _of_counts(self, counts: ScoreCounts) -> float: ...


class LinkAUC(_LinkClassification):
    """Area under the ROC curve of positive against negative links, as in `roc_auc_score`."""

    name = "auc"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.auc()


class LinkAveragePrecision(_LinkClassification):
    """Average precision of positive among negative links, as in `average_precision_score`."""

    name = "ap"

    def _of_counts(self, counts: ScoreCounts) -> float:
        return counts.average_precision()
