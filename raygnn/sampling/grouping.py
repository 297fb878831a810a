"""Entries in groups, by counting: a stable sort of keys that are known to be small."""

from __future__ import annotations

from typing import NamedTuple

import torch
from numba import njit
from torch import Tensor


class Groups(NamedTuple):
    """Entries ordered by key; those of a key stay in their order, so that sums keep one too.

    Attributes:
        order: int64 [num_entries], positions in the order that was given.
        values: int64 [num_entries], what was given with each entry.
        ptr: int64 [num_keys + 1], where the entries of each key begin.
    """

    order: Tensor
    values: Tensor
    ptr: Tensor


def group_by_key(keys: Tensor, values: Tensor, num_keys: int) -> Groups:
    """Orders entries by key.

    Args:
        keys: int64 [num_entries], each from 0 to num_keys - 1.
        values: int64 [num_entries].
    """
    ptr = keys.new_zeros(num_keys + 1)
    if keys.device.type != "cpu":
        order = keys.sort(stable=True).indices
        torch.cumsum(torch.bincount(keys, minlength=num_keys), 0, out=ptr[1:])
        return Groups(order, values.index_select(0, order), ptr)
    order, grouped = torch.empty_like(keys), torch.empty_like(values)
    arrays = (tensor.contiguous().numpy() for tensor in (keys, values))
    _group(*arrays, order.numpy(), grouped.numpy(), ptr.numpy())
    return Groups(order, grouped, ptr)


@njit(nogil=True, cache=True)
def _group(keys, values, order, grouped, ptr):  # type: ignore[no-untyped-def]
    for key in keys:
        ptr[key + 1] += 1
    for key in range(len(ptr) - 1):
        ptr[key + 1] += ptr[key]
    for i in range(len(keys)):
        place = ptr[keys[i]]
        order[place] = i
        grouped[place] = values[i]
        ptr[keys[i]] = place + 1
    # Each entry of `ptr` is now where its key ends, which is where the next one begins.
    for key in range(len(ptr) - 1, 0, -1):
        ptr[key] = ptr[key - 1]
    ptr[0] = 0
