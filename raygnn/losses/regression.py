"""Losses on numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raygnn.data.standardization import ColumnScale
from raygnn.losses.base import Loss, entries, in_full_precision


class MeanSquaredError(Loss):
    """Squared error, averaged over the outputs of a seed."""

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Takes numbers as target, [num_seeds, num_outputs]; see `Loss`."""
        prediction = in_full_precision(prediction)
        error = prediction - entries("mse", prediction, target)
        return error.square().sum() / prediction.shape[1], float(prediction.shape[0])


#: Losses of prediction and target that mean the same in any unit, but for a factor.
DISTANCES = (MeanSquaredError, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


def standardized(target: Tensor, scale: ColumnScale) -> Tensor:
    """Targets as standard deviations from their mean, float32; 0 where there is no deviation.

    Args:
        target: [num_seeds] or [num_seeds, num_outputs].
    """
    mean, std = _columns(scale, target)
    rows = (target.reshape(len(target), -1).double() - mean) / std.where(std > 0, torch.inf)
    return rows.reshape(target.shape).float()


def in_units(prediction: Tensor, scale: ColumnScale) -> Tensor:
    """Predictions of standardised targets in the targets' own unit, float64.

    Args:
        prediction: [num_rows, num_outputs].
    """
    mean, std = _columns(scale, prediction)
    return prediction.double() * std + mean


def _columns(scale: ColumnScale, like: Tensor) -> tuple[Tensor, Tensor]:
    mean, std = torch.tensor([scale.mean, scale.std], dtype=torch.float64, device=like.device)
    return mean, std
