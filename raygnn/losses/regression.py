"""Losses on numbers."""

from __future__ import annotations

from torch import Tensor

from raygnn.losses.base import Loss, entries, in_full_precision


class MeanSquaredError(Loss):
    """Squared error, averaged over the outputs of a seed."""

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Takes numbers as target, [num_seeds, num_outputs]; see `Loss`."""
        prediction = in_full_precision(prediction)
        error = prediction - entries("mse", prediction, target)
        return error.square().sum() / prediction.shape[1], float(prediction.shape[0])
