"""Losses on classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from raygnn.errors import ConfigError, DataError
from raygnn.losses.base import Loss, entries, in_full_precision


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
                f"[0, 1]. Set 0.0 to switch it off."
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
                f"binary_cross_entropy for several labels per node, mse for regression."
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
            f"not all 0. Give one number per output of the model."
        )
    return tensor


def _on(prediction: Tensor, weights: Tensor | None, name: str, expected: int) -> Tensor | None:
    if weights is None:
        return None
    if len(weights) != expected:
        raise ConfigError(
            f"losses.args.{name}={weights.tolist()!r} is invalid: the model has {expected} "
            f"outputs. Give {expected} weights."
        )
    return weights.to(prediction.device)
