"""Entries in groups, against a stable sort."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from raygnn.sampling.sparse_features import group_by_key


@given(st.integers(1, 9), st.lists(st.integers(0, 8), max_size=60), st.integers(0, 3))
def test_groups_are_those_of_a_stable_sort(num_keys: int, given_: list[int], skip: int) -> None:
    keys = torch.tensor([key % num_keys for key in given_], dtype=torch.int64)
    pair = torch.stack([keys, torch.arange(len(keys)) * 7 + 1])[:, skip:]  # rows of a longer one
    keys, values = pair[0], pair[1]
    order, grouped, ptr = group_by_key(keys, values, num_keys)
    assert torch.equal(order, keys.sort(stable=True).indices)
    assert torch.equal(grouped, values[order])
    assert ptr.tolist() == [int((keys < key).sum()) for key in range(num_keys + 1)]


def test_every_other_entry_of_a_tensor() -> None:
    keys = torch.tensor([2, 0, 1, 0, 2, 0])[::2]
    assert group_by_key(keys, keys + 10, 3).values.tolist() == [11, 12, 12]
