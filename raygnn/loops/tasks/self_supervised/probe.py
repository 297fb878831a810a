"""A linear probe: how well frozen embeddings predict a label."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

#: Inverse strengths of the L2 penalty that are tried, weakest fit first.
INVERSE_PENALTIES = tuple(10.0**power for power in range(-2, 5))
_WITHOUT_VALIDATION = 10.0
_MAX_ITERATIONS = 200
_LEAST_SCORE = -1e4  # score of classes that no training node has


@dataclass(frozen=True)
class LinearProbe:
    """A linear map of embeddings, scaled to unit length.

    Attributes:
        weight: float32 [num_outputs, channels].
        bias: float32 [num_outputs].
        inverse_penalty: scikit-learn's C, the best on the validation nodes.
    """

    weight: Tensor
    bias: Tensor
    inverse_penalty: float

    def __call__(self, rows: Tensor) -> Tensor:
        """Logits, or values of a regression; [num_rows, num_outputs]."""
        return functional.linear(functional.normalize(rows.float()), self.weight, self.bias)


@dataclass(frozen=True)
class ProbeRows:
    """Embeddings [num_nodes, channels] and labels of the nodes of a split."""

    rows: Tensor
    labels: np.ndarray


def fit_probe(
    problem: str, num_outputs: int, train: ProbeRows, val: ProbeRows | None
) -> LinearProbe:
    """Fits a probe for each penalty, and keeps the best on the validation nodes.

    Logistic regression for classes and for each label, ridge regression for numbers. The strongest
    of equally good penalties wins. Without validation nodes C is 10.

    Source: the protocol of GRACE, arXiv:2006.04131, section 4.2.

    Args:
        problem: multi_class, multi_label or regression.
        num_outputs: classes, labels or values.
    """
    tried: Sequence[float] = INVERSE_PENALTIES if val is not None else (_WITHOUT_VALIDATION,)
    x = functional.normalize(train.rows.float()).numpy()
    fit = _FITS[problem](x, train.labels.reshape(len(x), -1), num_outputs)
    best, best_score = None, -math.inf
    for inverse_penalty in tried:
        weight, bias = fit(inverse_penalty)
        probe = LinearProbe(
            torch.from_numpy(weight.astype(np.float32)),
            torch.from_numpy(bias.astype(np.float32)),
            inverse_penalty,
        )
        score = 0.0 if val is None else _score(problem, probe(val.rows), val.labels)
        if score > best_score:
            best, best_score = probe, score
    assert best is not None
    return best


def _score(problem: str, outputs: Tensor, labels: np.ndarray) -> float:
    target = torch.from_numpy(labels.reshape(len(outputs), -1))
    if problem == "multi_class":
        return float((outputs.argmax(dim=1) == target[:, 0]).double().mean())
    if problem == "multi_label":
        return float(((outputs > 0) == target.bool()).double().mean())
    return -float((outputs.double() - target).square().mean())


class _Classes:
    def __init__(self, x: np.ndarray, labels: np.ndarray, num_outputs: int) -> None:
        from sklearn.linear_model import LogisticRegression

        self._x, self._labels, self._num_outputs = x, labels[:, 0].astype(np.int64), num_outputs
        self._classes = np.unique(self._labels)
        self._model = LogisticRegression(max_iter=_MAX_ITERATIONS, tol=1e-3, warm_start=True)

    def __call__(self, inverse_penalty: float) -> tuple[np.ndarray, np.ndarray]:
        weight = np.zeros((self._num_outputs, self._x.shape[1]))
        bias = np.full(self._num_outputs, _LEAST_SCORE)
        bias[self._classes] = 0
        if len(self._classes) == 1:  # nothing to classify
            return weight, bias
        _fit(self._model, inverse_penalty, self._x, self._labels)
        classes = self._classes if len(self._classes) > 2 else self._classes[1:]
        weight[classes], bias[classes] = self._model.coef_, self._model.intercept_
        return weight, bias


class _Labels:
    """A logistic regression for each label; constant if all nodes have the label, or none."""

    def __init__(self, x: np.ndarray, labels: np.ndarray, num_outputs: int) -> None:
        self._fits = [_Classes(x, labels[:, [i]] > 0, 2) for i in range(num_outputs)]

    def __call__(self, inverse_penalty: float) -> tuple[np.ndarray, np.ndarray]:
        weights, biases = zip(*(fit(inverse_penalty) for fit in self._fits), strict=True)
        return (
            np.stack([weight[1] - weight[0] for weight in weights]),
            np.array([bias[1] - bias[0] for bias in biases]),
        )


class _Values:
    def __init__(self, x: np.ndarray, labels: np.ndarray, num_outputs: int) -> None:
        self._x, self._labels = x, labels.astype(np.float64)

    def __call__(self, inverse_penalty: float) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.linear_model import Ridge

        model = Ridge(alpha=1 / inverse_penalty).fit(self._x, self._labels)
        return np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)


#: By problem, made with rows [n, channels], labels [n, m] and the number of outputs; called
#: with a C, each gives weight and bias.
_FITS: Mapping[str, Callable[..., Callable[[float], tuple[np.ndarray, np.ndarray]]]] = {
    "multi_class": _Classes,
    "multi_label": _Labels,
    "regression": _Values,
}


def _fit(model: Any, inverse_penalty: float, x: np.ndarray, labels: np.ndarray) -> None:
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # A weak penalty may need more iterations than are worthwhile.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(C=inverse_penalty).fit(x, labels)
