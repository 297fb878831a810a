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
    """Sparse rows as a CSR matrix; `raygnn.models.sparse_input` multiplies them.

    Attributes:
        indptr: int64 [num_rows + 1], start of each row's entries.
        indices: int64 [num_entries], columns; equal ones of a row add up.
        values: floats [num_entries]; None for ones.
        width: number of columns.
        ends: number of entries by number of first rows, if counting would wait for a device.
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
        return len(self), self.width

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.values is None else self.values.dtype

    def __getitem__(self, rows: slice) -> SparseFeatures:
        """The first rows. Only `x[:count]` is supported."""
        assert rows.start is None
        assert rows.step is None
        if rows.stop is None or rows.stop >= len(self):
            return self
        indptr = self.indptr[: rows.stop + 1]
        end = int(indptr[-1]) if self.ends is None else self.ends[rows.stop]
        values = None if self.values is None else self.values[:end]
        return replace(self, indptr=indptr, indices=self.indices[:end], values=values)

    def with_ends(self, counts: Sequence[int]) -> SparseFeatures:
        """A copy with known numbers of entries of these numbers of first rows."""
        within = [count for count in counts if count <= len(self)]
        return replace(self, ends=dict(zip(within, self.indptr[within].tolist(), strict=True)))

    @cached_property
    def row(self) -> Tensor:
        """int64 [num_entries], row of each entry."""
        rows = torch.arange(len(self), device=self.indptr.device)
        return rows.repeat_interleave(self.indptr.diff(), output_size=len(self.indices))

    @cached_property
    def by_column(self) -> Groups:
        return group_by_key(self.indices, self.row, self.width)

    def with_values(self, values: Tensor) -> SparseFeatures:
        """Copy with other values, [num_entries]. Shares the transpose."""
        changed = replace(self, values=values)
        vars(changed).update({n: v for n, v in vars(self).items() if n in ("row", "by_column")})
        return changed

    def values_or_ones(self) -> Tensor:
        if self.values is not None:
            return self.values
        return torch.ones(len(self.indices), device=self.indices.device)

    def to_dense(self) -> Tensor:
        values = self.values_or_ones()
        dense = values.new_zeros(len(self) * self.width)
        return dense.index_add_(0, self.row * self.width + self.indices, values).view(self.shape)

    def to_coo(self) -> Tensor:
        places = torch.stack([self.row, self.indices])
        return torch.sparse_coo_tensor(
            places, self.values_or_ones(), self.shape, check_invariants=False
        )


class Groups(NamedTuple):
    """Entries ordered by key, stably, so that sums have one order.

    Attributes:
        order: int64 [num_entries], original positions.
        values: int64 [num_entries], reordered values.
        ptr: int64 [num_keys + 1], start of each key's entries.
    """

    order: Tensor
    values: Tensor
    ptr: Tensor


def group_by_key(keys: Tensor, values: Tensor, num_keys: int) -> Groups:
    """Orders entries by int64 keys in [0, num_keys)."""
    if keys.device.type != "cpu":
        # Half the bits of a key, half the kernels of a radix sort.
        dtype = torch.int16 if num_keys < 1 << 15 else torch.int32
        ascending, order = keys.to(dtype).sort(stable=True)
        # Not by counts: bincount makes the host wait for the largest key.
        bounds = torch.arange(num_keys + 1, dtype=dtype, device=keys.device)
        ptr = torch.searchsorted(ascending, bounds)
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
