"""A linear probe finds what is linear in embeddings, and only that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raygnn.loops.tasks.self_supervised.probe import INVERSE_PENALTIES, ProbeRows, fit_probe


def _rows(num_nodes: int, seed: int, noise: float = 0.5) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num_nodes)
    rows = np.eye(6)[labels] + noise * rng.normal(size=(num_nodes, 6))
    return torch.from_numpy(rows.astype(np.float32)), labels


def test_it_is_the_best_of_scikit_learns_fits():
    (x, y), (x_val, y_val) = _rows(200, 0), _rows(300, 1)
    probe = fit_probe("multi_class", 3, ProbeRows(x, y), ProbeRows(x_val, y_val))
    unit, unit_val = (torch.nn.functional.normalize(rows).numpy() for rows in (x, x_val))
    scores = [
        LogisticRegression(C=c, max_iter=1000).fit(unit, y).score(unit_val, y_val)
        for c in INVERSE_PENALTIES
    ]
    found = float((probe(x_val).argmax(1).numpy() == y_val).mean())
    assert found == pytest.approx(max(scores), abs=0.011)
    assert probe.inverse_penalty in INVERSE_PENALTIES
    # Scale does not count.
    assert torch.equal(probe(x_val).argmax(1), probe(7 * x_val).argmax(1))


@pytest.mark.parametrize("num_outputs", [2, 3])
def test_classes_that_training_lacks_are_never_predicted(num_outputs):
    x, y = _rows(90, 0)
    given = y < num_outputs - 1
    probe = fit_probe("multi_class", num_outputs, ProbeRows(x[given], y[given]), None)
    assert set(probe(x).argmax(1).tolist()) <= set(range(num_outputs - 1))


def test_two_classes():
    x, y = _rows(200, 0)
    two = y < 2
    probe = fit_probe("multi_class", 2, ProbeRows(x[two], y[two]), None)
    assert (probe(x[two]).argmax(1).numpy() == y[two]).mean() > 0.85


def test_labels_and_values():
    x, y = _rows(400, 0, noise=0.2)
    labels = np.stack([y == 0, y != 1, np.ones_like(y)], axis=1).astype(np.int8)
    probe = fit_probe("multi_label", 3, ProbeRows(x, labels), ProbeRows(x, labels))
    assert ((probe(x) > 0).numpy() == labels).mean() > 0.95
    values = (3.0 * y + 10).astype(np.float32)
    probe = fit_probe("regression", 1, ProbeRows(x, values), ProbeRows(x, values))
    assert np.abs(probe(x).numpy()[:, 0] - values).mean() < 0.8


def test_noise_gives_chance():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(1500, 16)).astype(np.float32))
    y = rng.integers(0, 3, 1500)
    parts = [ProbeRows(x[a:b], y[a:b]) for a, b in ((0, 500), (500, 700), (700, 1500))]
    probe = fit_probe("multi_class", 3, *parts[:2])
    accuracy = (probe(parts[2].rows).argmax(1).numpy() == parts[2].labels).mean()
    assert abs(accuracy - 1 / 3) < 4 * (2 / 9 / 800) ** 0.5
