"""What a loss is: a sum and its weight."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from raygnn.errors import DataError


class Loss(nn.Module, ABC):
    """A loss on seeds.

    It gives a sum and not a mean: the sums of micro-batches and ranks are added, then divided once
    by the added weights, so a global batch has the same loss however it was cut.
    """

    @abstractmethod
    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Computes the loss of one micro-batch.

        Args:
            prediction: [num_seeds, num_outputs], what the model gave for the seeds.
            target: the seeds' labels; all seeds are labelled.
        Returns:
            The loss summed over the seeds (a scalar with gradient), and what it is divided by.
        Raises:
            DataError: the target's shape or type does not fit.
        """


def in_full_precision(prediction: Tensor) -> Tensor:
    """The prediction in float32 at least: a sum over many seeds needs it, autocast or not."""
    return prediction if prediction.dtype == torch.float64 else prediction.float()


def entries(loss: str, prediction: Tensor, target: Tensor) -> Tensor:
    """Gives the target in the prediction's shape, [num_seeds, num_outputs], and its type.

    A target without the second dimension fits a prediction of one output.

    Raises:
        DataError: the shapes do not fit.
    """
    if target.dim() == 1 and prediction.shape[1] == 1:
        target = target.unsqueeze(1)
    if target.shape != prediction.shape:
        raise DataError(
            f"loss {loss}: labels have the shape {list(target.shape)}, the model's output has "
            f"{list(prediction.shape)}. Set model.args.out_channels to the number of values per "
            f"label, or choose another loss."
        )
    return target.to(prediction.dtype)
