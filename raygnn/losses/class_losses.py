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
from raygnn.losses.seed_losses import Loss, entries, in_full_precision

#: A number in [0, 1].
Share = Annotated[float, Field(ge=0, le=1)]
#: A weight per class, weights by class (its name, or its number), or `balanced`.
ClassWeights = str | Sequence[float] | Mapping[Any, float]

_MAX_SHOWN = 10


def class_weights(
    name: str,
    setting: ClassWeights,
    counts: LabelCounts | None,
    class_names: Sequence[str] | None,
) -> Tensor | None:
    """The weight of each class, float32 [num_classes].

    Args:
        name: argument name, for messages.
        given: classes missing in a mapping have weight 1.
        counts: label counts of training nodes; None before the graph is read.
        class_names: None if classes are numbers.
    Returns:
        None if the weights follow from counts, and there are none.
    Raises:
        ConfigError: an unknown class or word, a weight out of range, or a wrong number of weights.
    """
    if isinstance(setting, str):
        check_word(name, setting)
        return None if counts is None else torch.from_numpy(counts.class_weights()).float()
    if not isinstance(setting, Mapping):
        weights = numbers(name, setting)
        if counts is not None:
            check_count(name, weights, len(counts.counts))
        return weights
    if counts is None:
        return None
    by_class = [1.0] * len(counts.counts)
    known = class_names or [str(i) for i in range(len(by_class))]
    for key, value in setting.items():
        if str(key) not in known:
            raise _unknown_class(name, key, known)
        by_class[known.index(str(key))] = value
    return numbers(name, by_class)


def balanced_labels(name: str, word: str, counts: LabelCounts | None) -> Tensor | None:
    """Weights [num_labels, 2] of seeds without and with each label that balance it, float32.

    None without counts. Raises a ConfigError for other words than `balanced`.
    """
    check_word(name, word)
    return None if counts is None else torch.from_numpy(counts.binary_weights()).float()


def numbers(name: str, values: Sequence[float]) -> Tensor:
    """Weights as float32. Raises a ConfigError unless they are at least 0 and not all 0."""
    is_numbers = isinstance(values, Sequence) and all(
        isinstance(weight, int | float) and not isinstance(weight, bool) for weight in values
    )
    weights = torch.tensor(values if is_numbers else [], dtype=torch.float32)
    if not (bool(((weights >= 0) & weights.isfinite()).all()) and bool(weights.any())):
        raise ConfigError.invalid(
            f"losses.args.{name}",
            values,
            "weights must be finite, at least 0 and not all 0",
            f"Give one number per output of the model, or {BALANCED}",
            id="loss-class-weights",
        )
    return weights


def check_count(name: str, weights: Tensor, expected: int) -> None:
    if len(weights) != expected:
        raise ConfigError.invalid(
            f"losses.args.{name}",
            weights.tolist(),
            f"the model has {expected} outputs",
            f"Give {expected} weights",
            id="loss-class-weights-count",
        )


def check_word(name: str, value: str) -> None:
    if value != BALANCED:
        raise ConfigError.invalid(
            f"losses.args.{name}",
            value,
            "unknown weights",
            f"Set {BALANCED}, a list of numbers, or a number by class",
            id="loss-class-weights",
        )


def unknown_counts(name: str) -> ConfigError:
    return ConfigError(
        f"losses.args.{name} is invalid: this task does not count its training labels, so class "
        f"weights cannot be computed. Give a list of weights.",
        id="loss-class-weights-unknown",
    )


def _unknown_class(name: str, key: Any, known: Sequence[str]) -> ConfigError:
    shown = ", ".join(known[:_MAX_SHOWN]) + (", ..." if len(known) > _MAX_SHOWN else "")
    return ConfigError(
        f"losses.args.{name}.{key} is invalid: unknown class. "
        f"{did_you_mean(key, known)}Set any of: {shown}.",
        id="loss-class-weights-class",
    )


_LEAST_REST = 1e-12  # least remaining probability in `_focal`


class _ClassLoss(Loss):
    """A loss over exclusive classes, optionally weighted.

    Args:
        argument: name of the weights in the config.
        weights: None for equal weights; see `class_weights`.
    """

    class_weights: Tensor | None

    def __init__(
        self,
        argument: str,
        weights: ClassWeights | None,
        label_counts: LabelCounts | None,
        class_names: Sequence[str] | None,
    ) -> None:
        super().__init__()
        self._argument = argument
        tensor = (
            None if weights is None else class_weights(argument, weights, label_counts, class_names)
        )
        self._is_unknown = weights is not None and tensor is None
        self.register_buffer("class_weights", tensor)

    def _checked(self, prediction: Tensor, target: Tensor, loss: str) -> tuple[Tensor, Tensor]:
        """Logits in full precision and classes, int64 [num_seeds]."""
        num_seeds = len(prediction)
        if target.dim() == 2 and target.shape[1] == 1:
            target = target.squeeze(1)
        if target.shape != (num_seeds,) or target.is_floating_point():
            raise DataError(
                f"loss {loss}: labels are {target.dtype} of shape {list(target.shape)}, "
                f"expected integers of shape {[num_seeds]}, a class per node. Use "
                f"binary_{loss} for several labels per node, mse for regression.",
                id="loss-label-type",
            )
        return in_full_precision(prediction), target.long()

    def _weights(self, prediction: Tensor) -> Tensor | None:
        if self._is_unknown:
            raise unknown_counts(self._argument)
        return _on(prediction, self.class_weights, self._argument)


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

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Target: classes, integers [num_seeds] or [num_seeds, 1]."""
        logits, classes = self._checked(prediction, target, "cross_entropy")
        weights = self._weights(prediction)
        loss_sum = functional.cross_entropy(
            logits,
            classes,
            weight=weights,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )
        return loss_sum, float(len(classes)) if weights is None else weights[classes].sum()


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

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Target: classes, integers [num_seeds] or [num_seeds, 1]."""
        logits, classes = self._checked(prediction, target, "focal")
        log_p = logits.log_softmax(dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
        losses = _focal(log_p, -log_p.expm1(), self.gamma)
        weights = self._weights(prediction)
        if weights is not None:
            losses = losses * weights[classes]
        return losses.sum(), float(len(classes))


class BinaryCrossEntropy(Loss):
    """Binary cross-entropy per label on logits, averaged over the labels of a seed.

    Args:
        pos_weight: factor on the positive term of each label, against imbalance: one number, one
            per label, or `balanced`: training nodes without the label over those with it (1 if all
            or none have it).
        label_counts: of the training nodes; raygnn sets them.
    Raises:
        ConfigError: a weight is out of range.
    """

    pos_weight: Tensor | None

    def __init__(
        self,
        pos_weight: Sequence[float] | float | str | None = None,
        label_counts: LabelCounts | None = None,
    ) -> None:
        super().__init__()
        weights = None
        if isinstance(pos_weight, str):
            pairs = balanced_labels("pos_weight", pos_weight, label_counts)
            weights = None if pairs is None else pairs[:, 1] / pairs[:, 0]
        elif pos_weight is not None:
            if isinstance(pos_weight, int | float):
                pos_weight = [pos_weight]
            weights = numbers("pos_weight", pos_weight)
        self._is_unknown = pos_weight is not None and weights is None
        self.register_buffer("pos_weight", weights)

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Target: zeros and ones, [num_seeds, num_labels]."""
        if self._is_unknown:
            raise unknown_counts("pos_weight")
        prediction = in_full_precision(prediction)
        target = entries("binary_cross_entropy", prediction, target)
        num_seeds, num_labels = prediction.shape
        pos_weight = self.pos_weight
        if pos_weight is not None and len(pos_weight) == 1:
            pos_weight = pos_weight.expand(num_labels)
        pos_weight = _on(prediction, pos_weight, "pos_weight")
        total = functional.binary_cross_entropy_with_logits(
            prediction, target, pos_weight=pos_weight, reduction="sum"
        )
        return total / num_labels, float(num_seeds)


class BinaryFocal(Loss):
    """Focal loss per label on logits, averaged over the labels of a seed.

    Args:
        gamma: reduces the loss of well classified labels; 0 is binary cross-entropy.
        alpha: weight of seeds with a label, in [0, 1]; seeds without it have 1 - alpha. Or
            `balanced`, for each label separately.
        label_counts: of the training nodes; raygnn sets them.

    Source: arXiv:1708.02002, equation 5.
    """

    alpha: Tensor | None

    def __init__(
        self,
        gamma: NonNegativeNumber = 2.0,
        alpha: Share | str | None = None,
        label_counts: LabelCounts | None = None,
    ) -> None:
        super().__init__()
        self.gamma = float(gamma)
        weights = None
        if isinstance(alpha, str):
            weights = balanced_labels("alpha", alpha, label_counts)
        elif alpha is not None:
            weights = torch.tensor([[1 - alpha, float(alpha)]])
        self._is_unknown = alpha is not None and weights is None
        self.register_buffer("alpha", weights)  # [num_labels or 1, 2], of seeds without and with it

    def forward(self, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor | float]:
        """Target: zeros and ones, [num_seeds, num_labels]."""
        if self._is_unknown:
            raise unknown_counts("alpha")
        prediction = in_full_precision(prediction)
        has_label = entries("binary_focal", prediction, target) > 0
        margin = torch.where(has_label, prediction, -prediction)
        losses = _focal(functional.logsigmoid(margin), (-margin).sigmoid(), self.gamma)
        if self.alpha is not None:
            without, with_label = self.alpha.to(losses.device).T
            losses = losses * torch.where(has_label, with_label, without)
        return losses.sum() / prediction.shape[1], float(len(prediction))


def _on(prediction: Tensor, weights: Tensor | None, name: str) -> Tensor | None:
    if weights is None:
        return None
    check_count(name, weights, prediction.shape[1])
    return weights.to(prediction.device)


def _focal(log_p: Tensor, remainder: Tensor, gamma: float) -> Tensor:
    # Below 1 the power has an infinite slope at 0, where log_p is 0 too.
    return -log_p * remainder.clamp(min=_LEAST_REST).pow(gamma)
