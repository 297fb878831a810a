"""Cross-entropy of classes and of labels, with weights against imbalance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from raygnn.data.standardization import BALANCED, LabelCounts
from raygnn.errors import ConfigError, DataError, did_you_mean
from raygnn.losses.seed_losses import Loss, entries, in_full_precision, weighted_sum

#: A number in [0, 1].
Share = Annotated[float, Field(ge=0, le=1)]
#: A weight per class, weights by class (its name, or its number), or `balanced`.
ClassWeights = str | Sequence[float] | Mapping[Any, float]

_MAX_SHOWN = 10


class _WeightedLoss(Loss):
    """A loss with weights: None without any, or without the counts that they follow from.

    `name` and `setting`: of the weights in the config.
    """

    weights: Tensor | None

    def __init__(self, name: str, setting: object, weights: Tensor | None) -> None:
        super().__init__()
        self._name = name
        self._is_unknown = setting is not None and weights is None
        self.register_buffer("weights", weights)

    def _weights_for(self, prediction: Tensor) -> Tensor | None:
        if self._is_unknown:
            raise ConfigError(
                f"losses.args.{self._name} is invalid: this task does not count its training "
                "labels. Give a list of weights. [loss-class-weights-unknown]"
            )
        return None if self.weights is None else self.weights.to(prediction.device)


def _class_weights(
    setting: ClassWeights, counts: LabelCounts | None, class_names: Sequence[str] | None
) -> Tensor | None:
    """The weight of each class, float32 [num_classes]; 1 for classes missing in a mapping."""
    if isinstance(setting, str):
        _check_word("class_weights", setting)
        return None if counts is None else torch.from_numpy(counts.class_weights()).float()
    if not isinstance(setting, Mapping):
        weights = _numbers("class_weights", setting)
        if counts is not None:
            _check_count("class_weights", weights, len(counts.counts))
        return weights
    if counts is None:
        return None
    by_class = [1.0] * len(counts.counts)
    known = class_names or [str(i) for i in range(len(by_class))]
    for key, value in setting.items():
        if str(key) not in known:
            shown = ", ".join(known[:_MAX_SHOWN]) + (", ..." if len(known) > _MAX_SHOWN else "")
            raise ConfigError(
                f"losses.args.class_weights.{key} is invalid: unknown class. "
                f"{did_you_mean(key, known)}Set any of: {shown}. [loss-class-weights-class]"
            )
        by_class[known.index(str(key))] = value
    return _numbers("class_weights", by_class)


def _numbers(name: str, values: Sequence[float]) -> Tensor:
    is_numbers = isinstance(values, Sequence) and all(
        isinstance(weight, int | float) and not isinstance(weight, bool) for weight in values
    )
    weights = torch.tensor(values if is_numbers else [], dtype=torch.float32)
    if not (bool(((weights >= 0) & weights.isfinite()).all()) and bool(weights.any())):
        rule = "weights must be finite, at least 0 and not all 0"
        remedy = f"Give one number per output of the model, or {BALANCED}"
        raise ConfigError.invalid(
            f"losses.args.{name}", values, rule, remedy, id="loss-class-weights"
        )
    return weights


def _check_count(name: str, weights: Tensor, expected: int) -> None:
    if len(weights) != expected:
        key, rule = f"losses.args.{name}", f"the model has {expected} outputs"
        given, remedy = weights.tolist(), f"Give {expected} weights"
        raise ConfigError.invalid(key, given, rule, remedy, id="loss-class-weights-count")


def _check_word(name: str, value: str) -> None:
    if value != BALANCED:
        key, remedy = f"losses.args.{name}", f"Set {BALANCED}, a list, or a number by class"
        raise ConfigError.invalid(key, value, "unknown weights", remedy, id="loss-class-weights")


class CrossEntropy(_WeightedLoss):
    """Cross-entropy over exclusive classes.

    Args:
        label_smoothing: share of each target that is spread evenly over all classes, in [0, 1].
        class_weights: `balanced`, a weight per class, or weights by class. As in
            `torch.nn.CrossEntropyLoss`, the loss is divided by the sum of the seeds' weights, here
            over the whole step.
        label_counts: of the training nodes; raygnn sets them.
        class_names: of a text label; raygnn sets them.
    """

    def __init__(
        self,
        label_smoothing: Share = 0.0,
        class_weights: ClassWeights | None = None,
        label_counts: LabelCounts | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        weights = None
        if class_weights is not None:
            weights = _class_weights(class_weights, label_counts, class_names)
        super().__init__("class_weights", class_weights, weights)
        self.label_smoothing = label_smoothing

    def forward(
        self, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor | float]:
        """Target: classes, integers [num_seeds] or [num_seeds, 1]."""
        num_seeds = len(prediction)
        if target.dim() == 2 and target.shape[1] == 1:
            target = target.squeeze(1)
        if target.shape != (num_seeds,) or target.is_floating_point():
            raise DataError(
                f"loss cross_entropy: labels are {target.dtype} of shape {list(target.shape)}, "
                f"expected integers of shape {[num_seeds]}, a class per node. Use "
                "binary_cross_entropy for several labels per node, mse for regression. "
                "[loss-label-type]"
            )
        classes, weights = target.long(), self._weights_for(prediction)
        if weights is not None:
            _check_count("class_weights", weights, prediction.shape[1])
        losses = functional.cross_entropy(
            in_full_precision(prediction),
            classes,
            weight=weights,
            reduction="sum" if weight is None else "none",
            label_smoothing=self.label_smoothing,
        )
        if weight is None:
            return losses, float(len(classes)) if weights is None else weights[classes].sum()
        loss_sum, divisor = weighted_sum(losses, weight)
        return loss_sum, divisor if weights is None else (weight * weights[classes]).sum()


class BinaryCrossEntropy(_WeightedLoss):
    """Binary cross-entropy per label on logits, averaged over the labels of a seed.

    Args:
        pos_weight: factor on the positive term of each label, against imbalance: one number, one
            per label, or `balanced`: training nodes without the label over those with it (1 if all
            or none have it).
        label_counts: of the training nodes; raygnn sets them.
    Raises:
        ConfigError: a weight is out of range.
    """

    def __init__(
        self,
        pos_weight: Sequence[float] | float | str | None = None,
        label_counts: LabelCounts | None = None,
    ) -> None:
        weights = None
        if isinstance(pos_weight, str):
            _check_word("pos_weight", pos_weight)
            if label_counts is not None:
                without, with_label = torch.from_numpy(label_counts.binary_weights()).float().T
                weights = with_label / without
        elif isinstance(pos_weight, int | float):
            weights = _numbers("pos_weight", [pos_weight])
        elif pos_weight is not None:
            weights = _numbers("pos_weight", pos_weight)
        super().__init__("pos_weight", pos_weight, weights)

    def forward(
        self, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor | float]:
        """Target: zeros and ones, [num_seeds, num_labels]."""
        pos_weight = self._weights_for(prediction)
        prediction = in_full_precision(prediction)
        target = entries("binary_cross_entropy", prediction, target)
        num_labels = prediction.shape[1]
        if pos_weight is not None and len(pos_weight) > 1:
            _check_count("pos_weight", pos_weight, num_labels)
        losses = functional.binary_cross_entropy_with_logits(
            prediction, target, pos_weight=pos_weight, reduction="none"
        )
        total, divisor = weighted_sum(losses, weight)
        return total / num_labels, divisor
