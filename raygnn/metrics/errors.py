"""Metrics of regression."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raygnn.metrics.base import SumMetric


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
        """Gives `r2`."""
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
