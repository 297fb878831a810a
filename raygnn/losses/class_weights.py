"""Weights of classes in a loss: as given, or so that all classes weigh the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raygnn.data.label_counts import BALANCED, LabelCounts
from raygnn.errors import ConfigError, did_you_mean

#: A weight per class, weights by class (its name, or its number), or `balanced`.
ClassWeights = str | Sequence[float] | Mapping[Any, float]

_MAX_SHOWN = 10


def class_weights(
    name: str,
    given: ClassWeights,
    counts: LabelCounts | None,
    class_names: Sequence[str] | None,
) -> Tensor | None:
    """The weight of each class.

    Args:
        name: of the argument, for messages.
        given: classes that a mapping leaves out weigh 1.
        counts: of the training nodes; None where the graph is not read yet.
        class_names: None where classes are numbers.
    Returns:
        float32 [num_classes]; None where it follows from counts, and there are none.
    Raises:
        ConfigError: there is no such class or word, a weight is out of range, or their number is
            not that of the classes.
    """
    if isinstance(given, str):
        check_word(name, given)
        return None if counts is None else torch.from_numpy(counts.class_weights()).float()
    if not isinstance(given, Mapping):
        weights = numbers(name, given)
        if counts is not None:
            check_count(name, weights, len(counts.counts))
        return weights
    if counts is None:
        return None
    by_class = [1.0] * len(counts.counts)
    known = class_names or [str(i) for i in range(len(by_class))]
    for key, value in given.items():
        if str(key) not in known:
            raise _unknown_class(name, key, known)
        by_class[known.index(str(key))] = value
    return numbers(name, by_class)


def balanced_labels(name: str, word: str, counts: LabelCounts | None) -> Tensor | None:
    """The weights of seeds without and with each label that balance it.

    Returns:
        float32 [num_labels, 2]; None without counts.
    Raises:
        ConfigError: the word is another one than `balanced`.
    """
    check_word(name, word)
    return None if counts is None else torch.from_numpy(counts.binary_weights()).float()


def numbers(name: str, given: Sequence[float]) -> Tensor:
    """Weights as float32.

    Raises:
        ConfigError: one is not a number of at least 0, or all are 0.
    """
    is_numbers = isinstance(given, Sequence) and all(
        isinstance(weight, int | float) and not isinstance(weight, bool) for weight in given
    )
    weights = torch.tensor(given if is_numbers else [], dtype=torch.float32)
    if not (bool(((weights >= 0) & weights.isfinite()).all()) and bool(weights.any())):
        raise ConfigError.invalid(
            f"losses.args.{name}",
            given,
            "weights must be finite, at least 0 and not all 0",
            f"Give one number per output of the model, or {BALANCED}",
            id="loss-class-weights",
        )
    return weights


def check_count(name: str, weights: Tensor, expected: int) -> None:
    """Checks the number of weights.

    Raises:
        ConfigError: it is not that of the model's outputs.
    """
    if len(weights) != expected:
        raise ConfigError.invalid(
            f"losses.args.{name}",
            weights.tolist(),
            f"the model has {expected} outputs",
            f"Give {expected} weights",
            id="loss-class-weights-count",
        )


def check_word(name: str, given: str) -> None:
    """Checks weights that are a word.

    Raises:
        ConfigError: it is another one than `balanced`.
    """
    if given != BALANCED:
        raise ConfigError.invalid(
            f"losses.args.{name}",
            given,
            "there are no such weights",
            f"Set {BALANCED}, a list of numbers, or a number by class",
            id="loss-class-weights",
        )


def unknown_counts(name: str) -> ConfigError:
    """The error of weights that follow from labels which a task does not count."""
    return ConfigError(
        f"losses.args.{name} is invalid: this task does not count its training labels, so the "
        "weights of classes do not follow. Give a list of weights.",
        id="loss-class-weights-unknown",
    )


def _unknown_class(name: str, key: Any, known: Sequence[str]) -> ConfigError:
    shown = ", ".join(known[:_MAX_SHOWN]) + (", ..." if len(known) > _MAX_SHOWN else "")
    return ConfigError(
        f"losses.args.{name}.{key} is invalid: unknown class. "
        f"{did_you_mean(key, known)}Set any of: {shown}.",
        id="loss-class-weights-class",
    )
