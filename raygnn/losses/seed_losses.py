"""Losses on seeds, and the penalties that stand beside them: each a sum and its weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from raygnn.data.standardization import ColumnScale
from raygnn.errors import ConfigError, DataError


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
            f"label, or choose another loss.",
            id="loss-label-shape",
        )
    return target.to(prediction.dtype)


class CrossEntropy(Loss):
    """Cross-entropy over classes that exclude each other.

    Args:
        label_smoothing: share of each target that is spread evenly over all classes, in [0, 1].
        class_weights: a weight per class. The loss is divided by the sum of the seeds' weights, as
            `torch.nn.CrossEntropyLoss` does.
    Raises:
        ConfigError: an argument is out of range.
    """

    class_weights: Tensor | None

    def __init__(
        self, label_smoothing: float = 0.0, class_weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if not 0.0 <= label_smoothing <= 1.0:
            raise ConfigError(
                f"losses.args.label_smoothing={label_smoothing!r} is invalid: it must lie in "
                f"[0, 1]. Set 0.0 to switch it off.",
                id="loss-argument",
            )
        self.label_smoothing = label_smoothing
        self.register_buffer("class_weights", _weights("class_weights", class_weights))

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Takes classes as target, integers [num_seeds] or [num_seeds, 1]; see `Loss`."""
        num_seeds, num_classes = prediction.shape
        if target.dim() == 2 and target.shape[1] == 1:
            target = target.squeeze(1)
        if target.shape != (num_seeds,) or target.is_floating_point():
            raise DataError(
                f"loss cross_entropy: labels are {target.dtype} of shape {list(target.shape)}, "
                f"expected integers of shape {[num_seeds]}, a class per node. Use "
                f"binary_cross_entropy for several labels per node, mse for regression.",
                id="loss-label-type",
            )
        weights = _on(prediction, self.class_weights, "class_weights", num_classes)
        loss_sum = functional.cross_entropy(
            in_full_precision(prediction),
            target.long(),
            weight=weights,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return loss_sum, float(num_seeds) if weights is None else weights[target.long()].sum()


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy per label on logits, averaged over the labels of a seed.

    Args:
        pos_weight: a factor on the positive term of each label, against imbalance.
    Raises:
        ConfigError: a weight is out of range.
    """

    pos_weight: Tensor | None

    def __init__(self, pos_weight: Sequence[float] | float | None = None) -> None:
        super().__init__()
        if isinstance(pos_weight, int | float):
            pos_weight = [pos_weight]
        self.register_buffer("pos_weight", _weights("pos_weight", pos_weight))

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Takes zeros and ones as target, [num_seeds, num_labels]; see `Loss`."""
        prediction = in_full_precision(prediction)
        target = entries("binary_cross_entropy", prediction, target)
        num_seeds, num_labels = prediction.shape
        pos_weight = self.pos_weight
        if pos_weight is not None and len(pos_weight) == 1:
            pos_weight = pos_weight.expand(num_labels)
        pos_weight = _on(prediction, pos_weight, "pos_weight", num_labels)
        total = functional.binary_cross_entropy_with_logits(
            prediction, target, pos_weight=pos_weight, reduction="sum"
        )
        return total / num_labels, float(num_seeds)


def _weights(name: str, weights: Sequence[float] | None) -> Tensor | None:
    if weights is None:
        return None
    tensor = torch.tensor(weights, dtype=torch.float32)
    if not (bool(((tensor >= 0) & tensor.isfinite()).all()) and bool(tensor.any())):
        raise ConfigError(
            f"losses.args.{name}={weights!r} is invalid: weights must be finite, at least 0 and "
            f"not all 0. Give one number per output of the model.",
            id="loss-class-weights",
        )
    return tensor


def _on(prediction: Tensor, weights: Tensor | None, name: str, expected: int) -> Tensor | None:
    if weights is None:
        return None
    if len(weights) != expected:
        raise ConfigError(
            f"losses.args.{name}={weights.tolist()!r} is invalid: the model has {expected} "
            f"outputs. Give {expected} weights.",
            id="loss-class-weights-count",
        )
    return weights.to(prediction.device)


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


class EmbeddingL2(nn.Module):
    """Half the squared L2 norm of the embeddings, averaged over rows: the penalty of BPR.

    Source: arXiv:1205.2618, equation 5.
    """

    def forward(self, embeddings: Tensor) -> Tensor:
        """A scalar.

        Args:
            embeddings: [num_rows, channels], of the seeds, or of both ends of each link.
        """
        return in_full_precision(embeddings).square().sum() / (2 * embeddings.shape[0])


class WeightL1(nn.Module):
    """Sum of the absolute values of all trainable weights; weight decay is the optimizer's."""

    def forward(self, model: nn.Module) -> Tensor:
        """A scalar that does not depend on the batch."""
        sums = [in_full_precision(p).abs().sum() for p in model.parameters() if p.requires_grad]
        return torch.stack(sums).sum()
