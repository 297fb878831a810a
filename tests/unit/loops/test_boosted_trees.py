"""LightGBM on columns of rows."""

from __future__ import annotations

import numpy as np
import pytest

from raygnn.loops.boosted_trees import BoostedTrees


def _rows(num_rows: int) -> np.ndarray:
    x = np.random.default_rng(0).random((num_rows, 3))
    x[:, 2] = np.arange(num_rows) % 5  # categories
    return x


@pytest.mark.parametrize("num_val", [100, 0])
def test_trees_learn_numbers_and_classes(num_val: int) -> None:
    x = _rows(600)
    y = x[:, 0] + (x[:, 2] == 3)
    train, val = x[num_val:], x[:num_val]
    trees = BoostedTrees.fit(train, y[num_val:], val, y[:num_val], None, [2])
    assert np.abs(trees.predict(x)[:, 0] - y).mean() < (0.06 if num_val else 0.1)
    for num_classes in (2, 3):
        z = np.floor(num_classes * x[:, 1]).astype(int)
        trees = BoostedTrees.fit(train, z[num_val:], val, z[:num_val], num_classes)
        found = trees.predict(x)
        assert found.shape == (600, num_classes)
        assert found.sum(axis=1) == pytest.approx(np.ones(600))
        assert np.mean(found.argmax(axis=1) == z) > 0.9


@pytest.mark.parametrize("num_classes", [None, 2, 3])
def test_text_predicts_the_same_bits(num_classes: int | None) -> None:
    x = _rows(300)
    y = x[:, 0] if num_classes is None else np.floor(num_classes * x[:, 0]).astype(int)
    trees = BoostedTrees.fit(x[50:], y[50:], x[:50], y[:50], num_classes, [2])
    again = BoostedTrees.of_text(trees.to_text())
    assert np.array_equal(again.predict(x), trees.predict(x))
    contributions = trees.contributions(x)
    scores = contributions.sum(axis=3)
    combined = trees.combined(scores, "multi_class" if num_classes else "regression")
    assert combined == pytest.approx(trees.predict(x), abs=1e-6)
    assert contributions.shape[1:3] == (len(x), num_classes or 1)
    threads = BoostedTrees.fit(x[50:], y[50:], x[:50], y[:50], num_classes, [2], 3)
    assert np.array_equal(threads.predict(x), trees.predict(x))


@pytest.mark.parametrize("num_classes", [None, 2, 3])
def test_without_columns_all_rows_are_predicted_alike(num_classes: int | None) -> None:
    x, y = np.empty((300, 0)), np.arange(300) % (num_classes or 7)
    trees = BoostedTrees.fit(x[50:], y[50:], x[:50], y[:50], num_classes)
    predicted = trees.refitted(x, y).predict(x)
    shares = np.bincount(y) / len(y) if num_classes else [np.median(y)]
    assert predicted == pytest.approx(np.tile(shares, (300, 1)), abs=0.1)
    contributions = trees.contributions(x[:5])
    assert contributions.shape[1:] == (5, num_classes or 1, 1)


def test_medians_of_a_long_tail_are_learned_as_of_their_arcsinh() -> None:
    x = _rows(3_000)
    noise = np.random.default_rng(1).laplace(size=len(x))
    y = np.exp(6 * x[:, 0] + (x[:, 2] == 3) + noise / 4)
    trees = BoostedTrees.fit(x[500:], y[500:], x[:500], y[:500], None, [2])
    assert trees.to_text().startswith("# unit ")
    again = BoostedTrees.of_text(trees.to_text())
    predicted = trees.predict(x)
    assert np.array_equal(again.predict(x), predicted)
    assert np.array_equal(again.refitted(x[500:], y[500:]).predict(x), predicted)
    scores = trees.contributions(x).sum(axis=3)
    assert trees.combined(scores, "regression") == pytest.approx(predicted)
    best = np.exp(6 * x[:, 0] + (x[:, 2] == 3))
    error, least = (np.abs(guess - y).mean() for guess in (predicted[:, 0], best))
    assert error < 1.25 * least  # 1.6 without
    of_means = BoostedTrees.fit(x[500:], y[500:], x[:500], y[:500], None, [2], learns_medians=False)
    assert not of_means.to_text().startswith("# unit ")


@pytest.mark.parametrize("num_classes", [None, 2, 3])
def test_refitted_trees_keep_settings_and_number(num_classes: int | None) -> None:
    x = _rows(2_000)
    noise = np.random.default_rng(1).random(len(x))
    y = (x[:, 0] + noise) / 2
    y = y if num_classes is None else np.floor(num_classes * y).astype(int)
    trees = BoostedTrees.fit(x[500:], y[500:], x[:500], y[:500], num_classes, [2])
    trees = BoostedTrees.of_text(trees.to_text())
    assert np.array_equal(trees.refitted(x[500:], y[500:]).predict(x), trees.predict(x))
    assert not np.array_equal(trees.refitted(x, y).predict(x), trees.predict(x))
    both = np.stack([y, y], axis=1)
    trees = BoostedTrees.fit(x[500:], both[500:], x[:500], both[:500], num_classes, [2])
    assert np.array_equal(trees.refitted(x[500:], both[500:]).predict(x), trees.predict(x))


def test_the_median_is_learned_for_absolute_errors() -> None:
    y = np.where(np.arange(400) % 4 == 0, 100.0, 1.0)
    x = np.random.default_rng(0).random((400, 1))
    predicted = [
        np.median(BoostedTrees.fit(x, y, x[:0], y[:0], None, learns_medians=each).predict(x))
        for each in (True, False)
    ]
    assert predicted[0] == pytest.approx(1, abs=0.1)
    assert predicted[1] > 5


def test_trees_learn_the_level_of_seasons_that_validation_has_not() -> None:
    """The order of validation rows, all of one season, is right after the first tree."""
    rng = np.random.default_rng(0)
    season, x = rng.integers(0, 2, 4_000), rng.random(4_000) < 0.5
    y = (rng.random(4_000) < 0.1 + 0.2 * x + 0.6 * season).astype(int)
    columns, val = np.stack([season, x], axis=1).astype(float), season[:2_000] == 0
    trees = BoostedTrees.fit(columns[2_000:], y[2_000:], columns[:2_000][val], y[:2_000][val], 2)
    assert trees.predict(columns)[season == 1, 1].mean() == pytest.approx(0.8, abs=0.04)
