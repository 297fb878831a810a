"""Baselines: predictions without a graph, evaluated with the model's own metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.loops.blend import Standings
from raygnn.metrics import (
    Accuracy,
    BalancedAccuracy,
    F1Macro,
    F1Micro,
    Metric,
    TorchMetric,
    metrics_of,
)

_ERRORS = ("loss", "mae", "nmae", "rmse")
#: A model is better than a baseline by more than this.
NUM_STANDARD_ERRORS = 2


def is_error(metric: str) -> bool:
    """Whether less is better, for a metric of raygnn with or without split and task."""
    return metric.rpartition("/")[2] in _ERRORS


@dataclass(frozen=True)
class Baselines:
    """Metrics of baseline predictions on a split, and the precision that its size allows.

    Attributes:
        metrics: values by baseline and metric.
        num_rows: nodes or links that metrics are averaged over.
        positives: rows of each class or label, or links, for metrics of a ranking.
        negatives: the rows that these are compared with.
        standings: rungs beside the model, if validation chose what predicts.
        parts: baselines that the model consists of, with which it is not compared.
        uncalibrated: calibration of the model before validation scaled it; None if it did not.
    """

    metrics: Mapping[str, Mapping[str, float]]
    num_rows: int
    positives: tuple[int, ...] = ()
    negatives: tuple[int, ...] = ()
    standings: Standings = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    uncalibrated: Mapping[str, Any] | None = None

    def best(self, metric: str) -> tuple[str, float] | None:
        """The best baseline by a metric, and its value; None without one."""
        values = [
            (guess, of_guess[metric])
            for guess, of_guess in self.metrics.items()
            if guess not in self.parts and not math.isnan(of_guess.get(metric, math.nan))
        ]
        sign = -1 if is_error(metric) else 1
        return max(values, key=lambda found: sign * found[1], default=None)

    def not_beaten(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Metrics by which a model is no better than a baseline, with that baseline; worst first.

        Better means by more than two standard errors of the model's value, which noise alone seldom
        gives. Metrics with an unknown standard error are left out. If links are ranked among all
        targets, only these ranks count.
        """
        found, margins = {}, {}
        full = {name: value for name, value in metrics.items() if name.startswith("full_")}
        for name, value in (full or metrics).items():
            guess, error = self.best(name), self.standard_error(name, value)
            if guess is None or error is None:
                continue
            if guess[1] == 1 and not is_error(name):  # hits@500 of 500 candidates
                continue
            gain = guess[1] - value if is_error(name) else value - guess[1]
            if not gain > NUM_STANDARD_ERRORS * error:
                found[name] = guess[0]
                margins[name] = gain / error if error else gain
        return {name: found[name] for name in sorted(found, key=margins.__getitem__)}

    def standard_error(self, metric: str, value: float) -> float | None:
        """Approximate standard error of a metric for rows drawn at random; None if unknown.

        A mean m of numbers in [0, 1] has a variance of at most m (1 - m), which accuracy reaches.

        Source: Hanley and McNeil 1982 (AUC of noise), Olkin and Finn 1995 (R2).
        """
        if math.isnan(value) or not self.num_rows:
            return None
        spread = math.sqrt(max(value * (1 - value), 0.0))
        if metric in ("accuracy", "f1_micro", "mrr") or metric.startswith(("hits@", "full_")):
            return spread / math.sqrt(self.num_rows)
        if metric in ("mae", "nmae"):  # errors spread about as much as they are large
            return value / math.sqrt(self.num_rows)
        if metric == "rmse":  # of normal errors
            return value / math.sqrt(2 * self.num_rows)
        if metric == "r2":
            share = max(value, 0.0) + 1 / self.num_rows  # noise explains about 1 / n
            return 2 * math.sqrt(share / self.num_rows) * (1 - value)
        if metric in ("f1_macro", "average_precision", "ap"):
            return self._of_means([spread**2 / p for p in self.positives if p])
        if metric in ("auroc", "auc"):
            both = zip(self.positives, self.negatives, strict=True)
            return self._of_means([(p + n + 1) / (12 * p * n) for p, n in both if p and n])
        return None

    def _of_means(self, variances: Sequence[float]) -> float | None:
        return math.sqrt(sum(variances)) / len(variances) if variances else None


@dataclass(frozen=True)
class BaselinesOfParts:
    """Baselines of several tasks. Metrics are prefixed with their task, as in `links/mrr`."""

    parts: Mapping[str, Baselines | BaselinesOfParts]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for part, baselines in self.parts.items():
            for guess, of_guess in baselines.metrics.items():
                named = {f"{part}/{name}": value for name, value in of_guess.items()}
                found.setdefault(guess, {}).update(named)
        return found

    def not_beaten(self, metrics: Mapping[str, float]) -> dict[str, str]:
        found: dict[str, str] = {}
        for part, baselines in self.parts.items():
            prefix = f"{part}/"
            own = {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}
            found |= {f"{part}/{k}": guess for k, guess in baselines.not_beaten(own).items()}
        return found

    def standard_error(self, metric: str, value: float) -> float | None:
        part, _, name = metric.partition("/")
        baselines = self.parts.get(part)
        return None if baselines is None else baselines.standard_error(name, value)


def label_baselines(
    problem: str,
    num_outputs: int,
    train: np.ndarray,
    labels: np.ndarray,
    metrics: Sequence[Any],
    positive_class: int = 1,
    guesses: Mapping[str, np.ndarray] = MappingProxyType({}),
    weights: tuple[np.ndarray | None, np.ndarray | None] = (None, None),
) -> Baselines:
    """Baselines that know only labels.

    `majority` predicts the most frequent class (the first of equal ones), or for each label the
    value of most nodes. `stratified` draws by the training shares; its accuracy and F1 are those of
    the expected counts. Numbers have `mean` and `median`.

    Args:
        train: training labels, [num_nodes] or [num_nodes, num_outputs].
        labels: labels of the split.
        metrics: only raygnn's own are computed.
        positive_class: the class of ranking metrics, with two classes.
        guesses: further predictions by name, [num_rows, num_outputs], such as `past_label_guesses`.
        weights: of the training rows, and of the rows of the split, float64 [num_rows].
    """
    targets = torch.from_numpy(np.ascontiguousarray(labels))
    of_train, of_split = weights
    weight = None if of_split is None else torch.from_numpy(of_split)
    metrics = own_metrics(metrics)
    if problem == "regression":
        rows = train.reshape(len(train), num_outputs).astype(np.float64)
        mean = np.average(rows, axis=0, weights=of_train)
        guesses = {"mean": mean, "median": weighted_median(rows, of_train), **guesses}
    found = {name: _of_guess(metrics, guess, targets, weight) for name, guess in guesses.items()}
    precision = precision_of(problem, num_outputs, labels, positive_class)
    if problem == "regression":
        return replace(precision, metrics=found)
    counts, counts_of_split = (
        _counts(problem, num_outputs, part, of_rows)
        for part, of_rows in zip((train, labels), weights, strict=True)
    )
    total = len(train) if of_train is None else of_train.sum()
    if problem == "multi_class":
        majority = np.zeros(num_outputs)
        majority[counts.argmax()] = 1
    else:
        majority = np.where(2 * counts > total, 1.0, -1.0)
    constant = _of_guess(metrics, majority, targets, weight)
    of_rows = np.ones(len(labels)) if of_split is None else of_split
    expected = _expected_metrics(metrics, counts / total, counts_of_split, labels, of_rows)
    drawn = constant | expected
    return replace(precision, metrics={"majority": constant, "stratified": drawn, **found})


def precision_of(
    problem: str, num_outputs: int, labels: np.ndarray, positive_class: int
) -> Baselines:
    """Baselines without predictions, whose standard errors are those of metrics on these labels."""
    if problem == "regression":
        return Baselines({}, len(labels))
    positives = _counts(problem, num_outputs, labels)
    if problem == "multi_class" and num_outputs == 2:
        positives = positives[[positive_class]]
    negatives = len(labels) - positives
    return Baselines({}, len(labels), tuple(positives.tolist()), tuple(negatives.tolist()))


def weighted_median(rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """[num_outputs], medians of float64 [num_rows, num_outputs]."""
    if weights is None:
        return np.asarray(np.median(rows, axis=0))
    order = np.argsort(rows, axis=0)
    ordered, sums = np.take_along_axis(rows, order, 0), np.cumsum(weights[order], axis=0)
    first = (2 * sums >= sums[-1]).argmax(axis=0)
    after = (2 * sums > sums[-1]).argmax(axis=0)
    ends = [np.take_along_axis(ordered, each[None], 0)[0] for each in (first, after)]
    return np.asarray((ends[0] + ends[1]) / 2)


def _counts(
    problem: str, num_outputs: int, labels: np.ndarray, weights: np.ndarray | None = None
) -> np.ndarray:
    """Rows of each class or label, or their weights."""
    if problem == "multi_class":
        return np.bincount(labels.reshape(-1).astype(np.int64), weights, num_outputs)
    rows = labels.reshape(len(labels), num_outputs).astype(bool)
    return np.asarray(rows.sum(axis=0) if weights is None else weights @ rows)


def _of_guess(
    metrics: Sequence[Any], guess: np.ndarray, targets: Tensor, weight: Tensor | None
) -> dict[str, float]:
    return metrics_of(metrics, torch.from_numpy(guess).expand(len(targets), -1), targets, weight)


def own_metrics(metrics: Sequence[Any]) -> list[Metric]:
    """raygnn's own metrics. Other metrics may treat ties differently."""
    return [
        metric
        for metric in metrics
        if isinstance(metric, Metric)
        and type(metric).__module__.startswith("raygnn.")
        and not isinstance(metric, TorchMetric)
    ]


def _expected_metrics(
    metrics: Sequence[Any],
    shares: np.ndarray,
    of_split: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
) -> dict[str, float]:
    num_rows = weights.sum()
    found: dict[str, float] = {}
    for metric in metrics:
        if isinstance(metric, Accuracy):
            right = float(of_split @ shares)
            if metric.problem == "multi_label":  # all labels of a row have to be right
                rows = labels.reshape(len(labels), len(shares)).astype(bool)
                right = float(weights @ np.where(rows, shares, 1 - shares).prod(axis=1))
            found |= metric.compute(torch.tensor([right, num_rows], dtype=torch.float64))
        elif isinstance(metric, BalancedAccuracy | F1Macro | F1Micro):
            counts = np.concatenate([of_split * shares, num_rows * shares, of_split])
            found |= metric.compute(torch.from_numpy(counts.astype(np.float64)))
    return found
