from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raygnn.sampling.rng import seed_order, windowed_order


@settings(max_examples=60)
@given(st.integers(0, 3000), st.integers(-(2**70), 2**70), st.integers(0, 2**40), st.data())
def test_it_is_a_bijection_with_random_access(num_seeds, seed, epoch, data):
    whole = seed_order(num_seeds, seed, epoch, 0, num_seeds)
    assert np.array_equal(np.sort(whole), np.arange(num_seeds))
    start = data.draw(st.integers(0, num_seeds))
    stop = data.draw(st.integers(start, num_seeds))
    assert np.array_equal(seed_order(num_seeds, seed, epoch, start, stop), whole[start:stop])


def test_it_differs_by_epoch_and_seed():
    orders = [seed_order(100, seed, epoch, 0, 100) for seed in range(3) for epoch in range(3)]
    assert len({order.tobytes() for order in orders}) == 9


def test_every_seed_comes_to_every_place():
    num_seeds, num_epochs = 7, 7000
    orders = np.stack([seed_order(num_seeds, 0, e, 0, num_seeds) for e in range(num_epochs)])
    counts = np.stack([np.bincount(column, minlength=num_seeds) for column in orders.T])
    expected = num_epochs / num_seeds
    chi2 = ((counts - expected) ** 2).sum() / expected
    dof = (num_seeds - 1) ** 2
    assert abs(chi2 - dof) < 4 * np.sqrt(2 * dof)
    # and in any order: 7! orders, each about as often as chance has it
    distinct = len(np.unique(orders, axis=0))
    assert abs(distinct - 5040 * (1 - np.exp(-num_epochs / 5040))) < 4 * np.sqrt(5040)


def test_huge_ranges_need_no_memory():
    positions = seed_order(2**50, 1, 2, 2**49, 2**49 + 1000)
    assert len(np.unique(positions)) == 1000
    assert positions.min() >= 0
    assert positions.max() < 2**50


_GROUP, _WINDOW = 1 << 14, 1 << 22


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 3 * _WINDOW), st.integers(0, 2**70), st.integers(0, 9), st.data())
def test_windows_are_a_bijection_with_random_access(num_rows, seed, epoch, data):
    whole = windowed_order(num_rows, seed, epoch, 0, num_rows)
    assert (np.bincount(whole, minlength=num_rows) == 1).all()
    start = data.draw(st.integers(0, num_rows))
    stop = data.draw(st.integers(start, num_rows))
    assert np.array_equal(windowed_order(num_rows, seed, epoch, start, stop), whole[start:stop])


def test_a_window_reads_few_groups():
    num_rows = 10**9
    windows = [windowed_order(num_rows, 0, 3, n * _WINDOW, (n + 1) * _WINDOW) for n in (0, 1, 237)]
    for rows in windows:
        jumps = np.flatnonzero(np.diff(np.sort(rows)) > 1)
        assert len(jumps) <= _WINDOW // _GROUP
        # groups come from everywhere, and their rows in any order
        assert np.ptp(rows) > 0.9 * num_rows
        assert abs(np.corrcoef(rows[:-1], rows[1:])[0, 1]) < 0.01
    first = windowed_order(num_rows, 0, 4, 0, _WINDOW)
    assert len(np.intersect1d(first, windows[0])) < _WINDOW / 20
