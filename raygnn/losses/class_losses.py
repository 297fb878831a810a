"""Losses of classes and labels, with weights and focal terms against imbalance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from raygnn.config.section import NonNegativeNumber
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
    name: str,
    setting: ClassWeights,
    counts: LabelCounts | None,
    class_names: Sequence[str] | None,
) -> Tensor | None:
    """The weight of each class, float32 [num_classes]; 1 for classes missing in a mapping."""
    if isinstance(setting, str):
        _check_word(name, setting)
        return None if counts is None else torch.from_numpy(counts.class_weights()).float()
    if not isinstance(setting, Mapping):
        weights = _numbers(name, setting)
        if counts is not None:
            _check_count(name, weights, len(counts.counts))
        return weights
    if counts is None:
        return None
    by_class = [1.0] * len(counts.counts)
    known = class_names or [str(i) for i in range(len(by_class))]
    for key, value in setting.items():
        if str(key) not in known:
            shown = ", ".join(known[:_MAX_SHOWN]) + (", ..." if len(known) > _MAX_SHOWN else "")
            raise ConfigError(
                f"losses.args.{name}.{key} is invalid: unknown class. "
                f"{did_you_mean(key, known)}Set any of: {shown}. [loss-class-weights-class]"
            )
        by_class[known.index(str(key))] = value
    return _numbers(name, by_class)


def _balanced_labels(name: str, word: str, counts: LabelCounts | None) -> Tensor | None:
    """Weights of seeds without and with each label that balance it, float32 [num_labels, 2]."""
    _check_word(name, word)
    return None if counts is None else torch.from_numpy(counts.binary_weights()).float()


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


_LEAST_REST = 1e-12  # least remaining probability in `_focal`


class _ClassLoss(_WeightedLoss):
    """A loss over exclusive classes, optionally weighted by class."""

    def __init__(
        self,
        name: str,
        setting: ClassWeights | None,
        label_counts: LabelCounts | None,
        class_names: Sequence[str] | None,
    ) -> None:
        weights = None
        if setting is not None:
            weights = _class_weights(name, setting, label_counts, class_names)
        super().__init__(name, setting, weights)

    def _checked(self, prediction: Tensor, target: Tensor, loss: str) -> tuple[Tensor, Tensor]:
        """Logits in full precision and classes, int64 [num_seeds]."""
        num_seeds = len(prediction)
        if target.dim() == 2 and target.shape[1] == 1:
            target = target.squeeze(1)
        if target.shape != (num_seeds,) or target.is_floating_point():
            raise DataError(
                f"loss {loss}: labels are {target.dtype} of shape {list(target.shape)}, expected "
                f"integers of shape {[num_seeds]}, a class per node. Use binary_{loss} for several "
                "labels per node, mse for regression. [loss-label-type]"
            )
        return in_full_precision(prediction), target.long()

    def _weights_for(self, prediction: Tensor) -> Tensor | None:
        weights = super()._weights_for(prediction)
        if weights is not None:
            _check_count(self._name, weights, prediction.shape[1])
        return weights


class CrossEntropy(_ClassLoss):
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
        super().__init__("class_weights", class_weights, label_counts, class_names)
        self.label_smoothing = label_smoothing

    def forward(
        self, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor | float]:
        """Target: classes, integers [num_seeds] or [num_seeds, 1]."""
        logits, classes = self._checked(prediction, target, "cross_entropy")
        weights = self._weights_for(prediction)
        losses = functional.cross_entropy(
            logits,
            classes,
            weight=weights,
            reduction="sum" if weight is None else "none",
            label_smoothing=self.label_smoothing,
        )
        if weight is None:
            return losses, float(len(classes)) if weights is None else weights[classes].sum()
        loss_sum, divisor = weighted_sum(losses, weight)
        return loss_sum, divisor if weights is None else (weight * weights[classes]).sum()


class Focal(_ClassLoss):
    """Focal loss over exclusive classes: -alpha (1 - p)^gamma log p of the class.

    It is divided by the number of seeds, for any alpha.

    Args:
        gamma: reduces the loss of well classified seeds; 0 is cross-entropy.
        alpha: with two classes, the weight of the second in [0, 1], and the first has 1 - alpha; or
            `balanced`, a weight per class, or weights by class.
        label_counts: of the training nodes; raygnn sets them.
        class_names: of a text label; raygnn sets them.

    Source: Lin et al., Focal Loss for Dense Object Detection, arXiv:1708.02002, equation 5.
    """

    def __init__(
        self,
        gamma: NonNegativeNumber = 2.0,
        alpha: Share | ClassWeights | None = None,
        label_counts: LabelCounts | None = None,
        class_names: Sequence[str] | None = None,
    ) -> None:
        if isinstance(alpha, int | float):
            alpha = [1 - alpha, float(alpha)]
        super().__init__("alpha", alpha, label_counts, class_names)
        self.gamma = float(gamma)

    def forward(
        self, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor | float]:
        """Target: classes, integers [num_seeds] or [num_seeds, 1]."""
        logits, classes = self._checked(prediction, target, "focal")
        log_p = logits.log_softmax(dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
        losses = _focal(log_p, -log_p.expm1(), self.gamma)
        weights = self._weights_for(prediction)
        if weights is not None:
            losses = losses * weights[classes]
        return weighted_sum(losses, weight)


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
            pairs = _balanced_labels("pos_weight", pos_weight, label_counts)
            weights = None if pairs is None else pairs[:, 1] / pairs[:, 0]
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


class BinaryFocal(_WeightedLoss):
    """Focal loss per label on logits, averaged over the labels of a seed.

    Args:
        gamma: reduces the loss of well classified labels; 0 is binary cross-entropy.
        alpha: weight of seeds with a label, in [0, 1]; seeds without it have 1 - alpha. Or
            `balanced`, for each label separately.
        label_counts: of the training nodes; raygnn sets them.

    Source: arXiv:1708.02002, equation 5.
    """

    def __init__(
        self,
        gamma: NonNegativeNumber = 2.0,
        alpha: Share | str | None = None,
        label_counts: LabelCounts | None = None,
    ) -> None:
        weights = None  # [num_labels or 1, 2], of seeds without and with it
        if isinstance(alpha, str):
            weights = _balanced_labels("alpha", alpha, label_counts)
        elif alpha is not None:
            weights = torch.tensor([[1 - alpha, float(alpha)]])
        super().__init__("alpha", alpha, weights)
        self.gamma = float(gamma)

    def forward(
        self, prediction: Tensor, target: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor | float]:
        """Target: zeros and ones, [num_seeds, num_labels]."""
        weights = self._weights_for(prediction)
        prediction = in_full_precision(prediction)
        has_label = entries("binary_focal", prediction, target) > 0
        margin = torch.where(has_label, prediction, -prediction)
        losses = _focal(functional.logsigmoid(margin), (-margin).sigmoid(), self.gamma)
        if weights is not None:
            without, with_label = weights.T
            losses = losses * torch.where(has_label, with_label, without)
        total, divisor = weighted_sum(losses, weight)
        return total / prediction.shape[1], divisor


def _focal(log_p: Tensor, remainder: Tensor, gamma: float) -> Tensor:
    # Below 1 the power has an infinite slope at 0, where log_p is 0 too.
    return -log_p * remainder.clamp(min=_LEAST_REST).pow(gamma)
