"""The stable sort of ingest."""

from __future__ import annotations

import numpy as np
import pytest

from raygnn.data.edge_kernels import sort_stably


@pytest.mark.parametrize("num_items", [0, 1, 31, 32, 33, 64, 65, 100, 1000])
@pytest.mark.parametrize("num_keys", [1, 7, 10_000])
def test_it_is_numpys_stable_sort_of_a_part(num_items, num_keys):
    rng = np.random.default_rng(num_items)
    keys = rng.integers(0, num_keys, num_items + 10)
    order = rng.permutation(num_items + 10)
    expected = order.copy()
    part = expected[5 : 5 + num_items]
    part[:] = part[np.argsort(keys[part], kind="stable")]
    sort_stably(order, 5, 5 + num_items, keys)
    np.testing.assert_array_equal(order, expected)


def test_a_sorted_part_stays():
    order = np.arange(500)
    sort_stably(order, 0, 500, np.arange(500) // 3)
    np.testing.assert_array_equal(order, np.arange(500))
