"""Rows of a batch that are mostly zeros, held by their other elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from numba import njit
from torch import Tensor

from raygnn.sampling.tensor_record import TensorRecord


@dataclass(frozen=True, kw_only=True)
class SparseFeatures(TensorRecord):
    """Sparse rows in the layout of a CSR matrix; `raygnn.models.sparse_input` multiplies them.

    Attributes:
        indptr: int64 [num_rows + 1], where the entries of each row begin.
        indices: int64 [num_entries], column of each entry; equal ones of a row add up.
        values: floats [num_entries]; None stands for ones.
        width: number of columns.
        ends: by number of first rows, their entries, if counting them would wait for a device.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor | None
    width: int
    ends: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.indptr) - 1

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self), self.width

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return torch.float32 if self.values is None else self.values.dtype

    def __getitem__(self, rows: slice) -> SparseFeatures:
        """The first rows: `x[:count]` is the only way to index."""
        assert rows.start is None
        assert rows.step is None
        if rows.stop is None or rows.stop >= len(self):
            return self
        indptr = self.indptr[: rows.stop + 1]
        end = int(indptr[-1]) if self.ends is None else self.ends[rows.stop]
        values = None if self.values is None else self.values[:end]
        return replace(self, indptr=indptr, indices=self.indices[:end], values=values)

    def with_ends(self, counts: Sequence[int]) -> SparseFeatures:
        """The same, knowing how many entries these numbers of first rows have."""
        within = [count for count in counts if count <= len(self)]
        return replace(self, ends=dict(zip(within, self.indptr[within].tolist(), strict=True)))

    @cached_property
    def row(self) -> Tensor:
        """int64 [num_entries], the row of each entry."""
        rows = torch.arange(len(self), device=self.indptr.device)
        return rows.repeat_interleave(self.indptr.diff(), output_size=len(self.indices))

    @cached_property
    def by_column(self) -> Groups:
        """The transpose: the entries by column, with their rows."""
        return group_by_key(self.indices, self.row, self.width)

    def with_values(self, values: Tensor) -> SparseFeatures:
        """Copy with other values, [num_entries]. Shares the transpose."""
        changed = replace(self, values=values)
        vars(changed).update({n: v for n, v in vars(self).items() if n in ("row", "by_column")})
        return changed

    def values_or_ones(self) -> Tensor:
        """[num_entries], also where all are 1."""
        if self.values is not None:
            return self.values
        return torch.ones(len(self.indices), device=self.indices.device)

    def to_dense(self) -> Tensor:
        """[num_rows, width], with all zeros."""
        values = self.values_or_ones()
        dense = values.new_zeros(len(self) * self.width)
        return dense.index_add_(0, self.row * self.width + self.indices, values).view(self.shape)

    def to_coo(self) -> Tensor:
        """Converts to a sparse COO tensor of torch."""
        places = torch.stack([self.row, self.indices])
        return torch.sparse_coo_tensor(
            places, self.values_or_ones(), self.shape, check_invariants=False
        )


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
    if keys.device.type != "cpu":
        ascending, order = keys.sort(stable=True)
        # Not by counts: bincount makes the host wait for the largest key.
        ptr = torch.searchsorted(ascending, torch.arange(num_keys + 1, device=keys.device))
        return Groups(order, values.index_select(0, order), ptr)
    ptr = keys.new_zeros(num_keys + 1)
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
