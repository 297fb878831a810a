"""Standard errors of metrics, compared with those of drawn samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.metrics import (
    AUROC,
    R2,
    Accuracy,
    F1Macro,
    MeanAbsoluteError,
    RootMeanSquaredError,
    metrics_of,
)
from raygnn.metrics.standard_errors import influences, standard_error

_NUM, _DRAWS = 400, 400


def _drawn(metric: object, predictions: list[np.ndarray], labels: np.ndarray) -> float:
    """Standard deviation of (the difference of) a metric over samples with replacement."""
    rng, values = np.random.default_rng(1), []
    for _ in range(_DRAWS):
        rows = rng.integers(0, _NUM, _NUM)
        target = torch.from_numpy(labels[rows])
        found = [
            next(iter(metrics_of([metric], torch.from_numpy(p[rows]), target).values()))
            for p in predictions
        ]
        values.append(found[0] - (found[1] if len(found) > 1 else 0))
    return float(np.std(values))


@pytest.mark.parametrize(
    "metric_class", [AUROC, Accuracy, MeanAbsoluteError, RootMeanSquaredError, R2]
)
def test_errors_are_those_of_drawn_samples(metric_class: type) -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=_NUM)
    is_class = metric_class in (AUROC, Accuracy)
    noise = [rng.normal(size=_NUM) for _ in range(2)]
    guesses = [(truth + 0.8 * each)[:, None] for each in noise]
    metric = metric_class(2 if is_class else 1, "multi_class" if is_class else "regression")
    labels = (truth + 0.5 * rng.normal(size=_NUM) > 0.3).astype(np.int64) if is_class else truth
    if is_class:
        guesses = [np.concatenate([np.zeros_like(each), each], axis=1) for each in guesses]
    each, both = np.arange(_NUM), [influences(metric, guess, labels) for guess in guesses]
    assert standard_error(both[0], each) == pytest.approx(
        _drawn(metric, guesses[:1], labels), rel=0.15
    )
    of_difference = standard_error(both[0] - both[1], each)
    assert of_difference == pytest.approx(_drawn(metric, guesses, labels), rel=0.15)


def test_rows_of_a_group_are_not_independent() -> None:
    values = np.repeat(np.random.default_rng(0).normal(size=50), 20)
    one_by_one, in_groups = (
        standard_error(values, groups) for groups in (np.arange(1000), np.repeat(np.arange(50), 20))
    )
    assert in_groups == pytest.approx(one_by_one * np.sqrt(20))


def test_other_metrics_have_no_closed_form() -> None:
    assert influences(F1Macro(2, "multi_class"), np.zeros((3, 2)), np.zeros(3, int)) is None
