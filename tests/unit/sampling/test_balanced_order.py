"""Balanced seeds: equal shares of all classes, each example once before any comes again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.sampling.batch_sequence import BalancedOrder

CLASSES = st.lists(st.integers(0, 5), min_size=1, max_size=60).map(lambda rows: np.array(rows))


def _whole(classes: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    return BalancedOrder(classes, seed).places(epoch, 0, len(classes))


@settings(max_examples=60)
@given(CLASSES, st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_classes_come_equally_often(classes, seed, epoch):
    counts = np.bincount(classes[_whole(classes, seed, epoch)], minlength=6)
    present = counts[np.unique(classes)]
    assert present.sum() == len(classes)
    assert present.max() - present.min() <= 1
    assert counts.sum() == present.sum()


@settings(max_examples=60)
@given(CLASSES, st.integers(0, 2**20), st.data())
def test_it_has_random_access(classes, epoch, data):
    whole = _whole(classes, 3, epoch)
    start = data.draw(st.integers(0, len(classes)))
    stop = data.draw(st.integers(start, len(classes)))
    assert np.array_equal(BalancedOrder(classes, 3).places(epoch, start, stop), whole[start:stop])


@settings(max_examples=30)
@given(CLASSES, st.integers(0, 100))
def test_examples_of_a_class_come_equally_often_over_epochs(classes, seed):
    epochs = np.concatenate([_whole(classes, seed, epoch) for epoch in range(7)])
    times = np.bincount(epochs, minlength=len(classes))
    for label in np.unique(classes):
        of_class = times[classes == label]
        assert of_class.max() - of_class.min() <= 1


def test_orders_differ_by_epoch_and_seed():
    classes = np.arange(100) % 3
    orders = [_whole(classes, seed, epoch) for seed in range(3) for epoch in range(3)]
    assert len({order.tobytes() for order in orders}) == 9


def test_each_example_of_a_large_class_comes_as_often_as_chance_has_it():
    classes = np.array([0] * 12 + [1] * 4)  # 8 places of class 0 in an epoch
    first = np.stack([_whole(classes, seed, 0) for seed in range(3000)])
    counts = np.bincount(first[classes[first] == 0], minlength=12)[:12]
    expected = 3000 * 8 / 12
    chi2 = ((counts - expected) ** 2).sum() / expected
    mean = 12 * (1 - 8 / 12)  # of a draw without replacement
    assert abs(chi2 - mean) < 4 * mean * np.sqrt(2 / 11)


def test_places_of_the_classes_are_shuffled():
    classes = np.array([0] * 90 + [1] * 10)
    labels = np.stack([classes[_whole(classes, seed, 0)] for seed in range(2000)])
    assert np.abs(labels.mean(axis=0) - 0.5).max() < 5 * 0.5 / np.sqrt(2000)


def test_the_order_stays():
    classes = np.array([0, 0, 0, 0, 0, 0, 0, 2, 2, 1])
    assert [_whole(classes, 7, epoch).tolist() for epoch in (0, 1)] == [
        [9, 0, 2, 5, 8, 9, 6, 7, 7, 9],
        [9, 4, 8, 8, 4, 7, 9, 3, 9, 1],
    ]
