"""Losses on seeds, and penalties: each a sum and its weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from raygnn.config.section import PositiveNumber
from raygnn.data.standardization import ColumnScale
from raygnn.errors import DataError


class Loss(nn.Module, ABC):
    """A loss on seeds.

    Returns a sum instead of a mean: sums over micro-batches and ranks are added, then divided once
    by the added weights. So the loss of a global batch does not depend on how it is divided.
    """

    @abstractmethod
    def forward(
        self, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor | float]:
        """Computes the loss of one micro-batch.

        Args:
            prediction: [num_seeds, num_outputs], output of the model.
            target: labels of the seeds; all are labelled.
            weight: [num_seeds], of rows with weights; a row of weight 2 counts as two rows.
        Returns:
            The loss summed over the seeds (a scalar with gradient), and its divisor.
        Raises:
            DataError: the target has a wrong shape or type.
        """


def in_full_precision(prediction: Tensor) -> Tensor:
    """The prediction at least in float32, which sums over many seeds need, also under autocast."""
    return prediction if prediction.dtype == torch.float64 else prediction.float()


def weighted_sum(losses: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | float]:
    """Sum of losses [num_seeds, ...], and the number of seeds or the sum of their weights."""
    if weight is None:
        return losses.sum(), float(len(losses))
    weight = weight.to(losses.dtype)
    return (losses.reshape(len(losses), -1) * weight.unsqueeze(1)).sum(), weight.double().sum()


def with_outputs_of(prediction: Tensor, target: Tensor) -> Tensor:
    """Adds a second dimension to labels [num_seeds] if the prediction has one output.

    [num_seeds, 1] and [num_seeds] would broadcast to [num_seeds, num_seeds].
    """
    is_column = prediction.dim() == 2 and prediction.shape[1] == 1
    return target.unsqueeze(1) if target.dim() == 1 and is_column else target


def entries(loss: str, prediction: Tensor, target: Tensor) -> Tensor:
    """The target in the prediction's shape and dtype. Raises a DataError if shapes do not match."""
    target = with_outputs_of(prediction, target)
    if target.shape != prediction.shape:
        raise DataError(
            f"loss {loss}: labels have the shape {list(target.shape)}, the model's output has "
            f"{list(prediction.shape)}. Set model.args.out_channels to the number of values per "
            "label, or choose another loss. [loss-label-shape]"
        )
    return target.to(prediction.dtype)


class _Distance(Loss):
    name: ClassVar[str]

    @abstractmethod
    def of_errors(self, error: Tensor) -> Tensor: ...

    def forward(
        self, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor | float]:
        prediction = in_full_precision(prediction)
        error = prediction - entries(self.name, prediction, target)
        total, divisor = weighted_sum(self.of_errors(error), weight)
        return total / prediction.shape[1], divisor


class MeanSquaredError(_Distance):
    """Squared error, averaged over the outputs of a seed."""

    name = "mse"

    def of_errors(self, error: Tensor) -> Tensor:
        return error.square()


class MeanAbsoluteError(_Distance):
    """Absolute error, averaged over the outputs of a seed."""

    name = "mae"

    def of_errors(self, error: Tensor) -> Tensor:
        return error.abs()


class Huber(_Distance):
    """Half the squared error up to `delta`, linear beyond, averaged over the outputs of a seed.

    Args:
        delta: error at which the loss becomes linear, in standard deviations of a standardized
            target (the default).
    """

    name = "huber"

    def __init__(self, delta: PositiveNumber = 1.0) -> None:
        super().__init__()
        self.delta = float(delta)

    def of_errors(self, error: Tensor) -> Tensor:
        size = error.abs()
        return torch.where(
            size <= self.delta, size.square() / 2, self.delta * (size - self.delta / 2)
        )


#: Losses of prediction and target that mean the same in any unit, but for a factor.
DISTANCES = (_Distance, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


def standardized(target: Tensor, scale: ColumnScale) -> Tensor:
    """Targets in standard deviations from their mean, float32; 0 without deviation."""
    mean, std = _columns(scale, target)
    rows = (target.reshape(len(target), -1).double() - mean) / std.where(std > 0, torch.inf)
    return rows.reshape(target.shape).float()


def in_units(prediction: Tensor, scale: ColumnScale) -> Tensor:
    """Predictions [num_rows, num_outputs] of standardized targets in the targets' unit, float64."""
    mean, std = _columns(scale, prediction)
    return prediction.double() * std + mean


def _columns(scale: ColumnScale, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and std as float64 on the device of a tensor. Unlike copies, this waits for nothing."""
    mean, std = (
        torch.stack([like.new_full((), number, dtype=torch.float64) for number in numbers])
        for numbers in (scale.mean, scale.std)
    )
    return mean, std


class EmbeddingL2(nn.Module):
    """Half the squared L2 norm of the embeddings, averaged over rows: the penalty of BPR.

    Source: arXiv:1205.2618, equation 5.
    """

    def forward(self, embeddings: Tensor) -> Tensor:
        return in_full_precision(embeddings).square().sum() / (2 * embeddings.shape[0])


class WeightL1(nn.Module):
    """Sum of the absolute values of all trainable weights. For weight decay, see the optimizer."""

    def forward(self, model: nn.Module) -> Tensor:
        sums = [in_full_precision(p).abs().sum() for p in model.parameters() if p.requires_grad]
        return torch.stack(sums).sum()
