"""A row of weight 2 counts as two rows: in losses, metrics, guesses and the choice of rungs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from raygnn.data.arrays import summable
from raygnn.data.bundle import SeedRows
from raygnn.data.past_labels import PastLabels
from raygnn.data.standardization import ColumnScale
from raygnn.loops.baselines import label_baselines, weighted_median
from raygnn.loops.blend import Judge, compare_rungs, fit_blend
from raygnn.loops.boosted_trees import BoostedTrees
from raygnn.losses import BinaryCrossEntropy, CrossEntropy, Huber, Loss
from raygnn.losses.seed_losses import MeanAbsoluteError as AbsoluteLoss
from raygnn.losses.seed_losses import MeanSquaredError as SquaredLoss
from raygnn.metrics import (
    AUROC,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    ComparedScores,
    F1Macro,
    F1Micro,
    MeanAbsoluteError,
    RootMeanSquaredError,
    compare,
    metrics_of,
)

PROBLEMS = ("multi_class", "multi_label", "regression")
LOSSES: dict[str, list[Callable[[], Loss]]] = {
    "multi_class": [
        CrossEntropy,
        lambda: CrossEntropy(0.1, [1.0, 2.0, 0.5]),
    ],
    "multi_label": [BinaryCrossEntropy, lambda: BinaryCrossEntropy(3.0)],
    "regression": [SquaredLoss, AbsoluteLoss, Huber],
}
METRICS: dict[str, list[Any]] = {
    "multi_class": [Accuracy, F1Macro, F1Micro, BalancedAccuracy, AUROC, AveragePrecision],
    "multi_label": [Accuracy, F1Macro, F1Micro, AUROC, AveragePrecision],
    "regression": [MeanAbsoluteError, RootMeanSquaredError, R2],
}


def _rows(problem: str, num: int = 60, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Predictions with ties, targets, whole weights from 1 to 3, and the rows repeated so often."""
    rng = np.random.default_rng(seed)
    prediction = rng.integers(-4, 5, (num, 3)) / 2
    target = rng.integers(0, 3, num) if problem == "multi_class" else rng.integers(0, 2, (num, 3))
    target = target + rng.random((num, 3)) if problem == "regression" else target
    weights = rng.integers(1, 4, num).astype(np.float64)
    return prediction, target, weights, np.repeat(np.arange(num), weights.astype(int))


def _tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(each) for each in arrays]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_losses_and_their_divisors(problem: str) -> None:
    prediction, target, weights, repeated = _rows(problem)
    x, y, weight = _tensors(prediction.astype(np.float32), target, weights)
    for build in LOSSES[problem]:
        expected = build()(x[repeated], y[repeated])
        found = build()(x, y, weight)
        assert [float(each) for each in found] == pytest.approx([float(each) for each in expected])
        plain, ones = build()(x, y), build()(x, y, torch.ones(len(x)))
        assert [float(each) for each in ones] == pytest.approx([float(each) for each in plain])


@settings(max_examples=30)
@given(st.sampled_from(PROBLEMS), st.integers(0, 10_000), st.integers(1, 40))
def test_metrics(problem: Any, seed: int, num: int) -> None:
    prediction, target, weights, repeated = _rows(problem, num, seed)
    kinds = [kind(3, problem) for kind in METRICS[problem]]
    expected = metrics_of(kinds, *_tensors(prediction[repeated], target[repeated]))
    if num == 1 and problem == "regression":
        del expected["r2"]  # of one row, which is not two
    found = metrics_of(kinds, *_tensors(prediction, target, weights))
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)


@given(st.integers(0, 10_000))
def test_metrics_are_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = summable(rng.gamma(0.5, 3, 50))
    scores, target = rng.integers(0, 9, 50) / 4, np.append(rng.integers(0, 2, 48), [0, 1])
    logits = np.stack([-scores, scores - 1], axis=1)
    kinds = [kind(2, "multi_class") for kind in (Accuracy, AUROC, AveragePrecision)]
    found = metrics_of(kinds, *_tensors(logits, target, weights))
    of_rows: dict[str, Any] = {"sample_weight": weights}
    kept = weights > 0
    precision = sk.average_precision_score(target[kept], scores[kept], sample_weight=weights[kept])
    assert found["accuracy"] == pytest.approx(
        sk.accuracy_score(target, logits.argmax(axis=1), **of_rows)
    )
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(target, scores, **of_rows))
    assert found["average_precision"] == pytest.approx(precision)
    numbers = [kind(1, "regression") for kind in METRICS["regression"]]
    found = metrics_of(numbers, *_tensors(scores[:, None], target, weights))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(target, scores, **of_rows))
    assert found["rmse"] ** 2 == pytest.approx(sk.mean_squared_error(target, scores, **of_rows))
    assert found["r2"] == pytest.approx(sk.r2_score(target, scores, **of_rows))


def test_order_of_batches_and_files_do_not_change_the_bits() -> None:
    rng = np.random.default_rng(0)
    scores, is_positive = rng.integers(0, 50, 4000) / 7, rng.random(4000) < 0.3
    weights = summable(rng.gamma(0.2, 1e3, 4000))
    metrics = [kind(2, "multi_class") for kind in (AUROC, AveragePrecision)]
    found = set()
    for num_held in (100, 1 << 20):
        for order in (np.arange(4000), rng.permutation(4000)):
            table = ComparedScores(1, num_held)
            rows = _tensors(scores[order, None], is_positive[order, None], weights[order])
            for part in zip(*(each.split(90) for each in rows), strict=True):
                table.add(*part)
            found.add(tuple(compare(metrics, table.columns()).values()))
    assert len(found) == 1
    assert weights.sum() == weights[rng.permutation(4000)].sum() == weights[::-1].cumsum()[-1]


@pytest.mark.parametrize("problem", PROBLEMS)
def test_guesses_scales_and_standings(problem: Any) -> None:
    prediction, target, weights, repeated = _rows(problem)
    metrics = [kind(3, problem) for kind in METRICS[problem]]
    asked, other = prediction[:, ::-1].copy(), np.roll(target, 7, axis=0)
    each = label_baselines(
        problem, 3, other, target, metrics, guesses={"g": asked}, weights=(weights, weights)
    )
    twice = label_baselines(
        problem, 3, other[repeated], target[repeated], metrics, guesses={"g": asked[repeated]}
    )
    assert each.metrics.keys() == twice.metrics.keys()
    for name, expected in twice.metrics.items():
        assert each.metrics[name] == pytest.approx(expected), name
    groups = np.arange(len(target)) // 3
    rungs = {"model": prediction, "lightgbm": asked}
    found = compare_rungs(metrics, rungs, target, groups, weights)
    repeats = {name: rows[repeated] for name, rows in rungs.items()}
    expected = compare_rungs(metrics, repeats, target[repeated], groups[repeated])
    assert found.keys() == expected.keys()
    for metric, of_rungs in expected.items():
        for rung, standing in of_rungs.items():
            values = [v for v in vars(found[metric][rung]).values() if v is not None]
            assert values == pytest.approx([v for v in vars(standing).values() if v is not None])
    if problem == "regression":
        scale, same = (
            ColumnScale.of_rows(target, weights),
            ColumnScale.of_rows(target[repeated]),
        )
        assert scale.mean + scale.std == pytest.approx(same.mean + same.std)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_choice_of_rungs(problem: str) -> None:
    prediction, target, weights, repeated = _rows(problem, 300)
    known = np.eye(3)[target] if problem == "multi_class" else target
    scores = {"lightgbm": known + prediction / 2, "gnn": known - np.roll(prediction, 1, axis=1)}
    constant, groups = np.array([-0.5, -1.0, -1.5]), np.arange(300) // 2
    judge = Judge(target, problem, False, groups, np.ones(3), weights)
    found = fit_blend(scores, judge, constant)
    twice = Judge(target[repeated], problem, False, groups[repeated], np.ones(3))
    repeats = {name: rows[repeated] for name, rows in scores.items()}
    expected = fit_blend(repeats, twice, constant)
    assert [*found.shares] == [*expected.shares]
    for name, share in expected.shares.items():
        assert found.shares[name].weight == pytest.approx(share.weight)
        assert found.shares[name].scale == pytest.approx(share.scale, rel=1e-6)
        assert found.shares[name].shift == pytest.approx(share.shift, rel=1e-5, abs=1e-8)


def test_medians_and_means_of_earlier_labels() -> None:
    rng = np.random.default_rng(0)
    rows, weights = rng.integers(0, 9, (41, 2)) / 2, rng.integers(1, 4, 41).astype(np.float64)
    repeated = np.repeat(np.arange(41), weights.astype(int))
    expected = np.median(rows[repeated], axis=0)
    assert weighted_median(rows, weights) == pytest.approx(expected)
    time, nodes = rng.permutation(41), rng.integers(0, 5, 41)

    def guesses(chosen: np.ndarray, of_rows: np.ndarray | None) -> dict[str, np.ndarray]:
        table = SeedRows("t", "user", len(chosen), nodes[chosen], time[chosen], None, None, {})
        earlier = PastLabels.of(table, np.arange(len(chosen)), rows[chosen], of_rows)
        return earlier.guesses(np.arange(5), np.full(5, 25), np.zeros(2))

    each, twice = guesses(np.arange(41), weights), guesses(repeated, None)
    for name, values in twice.items():
        assert each[name] == pytest.approx(values)
    weights[::2] = 0  # as if these rows were not there
    kept = np.flatnonzero(weights)
    assert guesses(np.arange(41), weights)["last_label"] == pytest.approx(
        guesses(kept, None)["last_label"]
    )


@pytest.mark.parametrize("num_classes", [None, 2])
def test_lightgbm_learns_heavy_rows_and_stops_by_them(num_classes: int | None) -> None:
    rng = np.random.default_rng(0)
    x, is_heavy = rng.random((2000, 2)), rng.random(2000) < 0.5
    y = np.where(is_heavy, x[:, 0], 1 - x[:, 0])
    y = y if num_classes is None else (y > 0.5).astype(int)
    predicted = []
    for flip in (False, True):
        weights = np.where(is_heavy ^ flip, 20.0, 1.0)
        parts: Any = (x[500:], y[500:], x[:500], y[:500], num_classes)
        of_rows: Any = {"weights": (weights[500:], weights[:500])}
        predicted.append(BoostedTrees.fit(*parts, **of_rows).predict(x)[:, -1])
    assert np.corrcoef(x[:, 0], predicted[0])[0, 1] > 0.8
    assert np.corrcoef(x[:, 0], predicted[1])[0, 1] < -0.8
