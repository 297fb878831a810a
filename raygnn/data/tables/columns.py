"""Arrow columns of graph tables, made from numpy arrays: dense rows, sparse rows, splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raygnn.data.bundle import SparseColumn
from raygnn.data.splits import SPLIT_NAMES

SPARSE_BELOW = 0.1  # share of non-zeros under which list columns are smaller than dense rows
SPARSE_MIN_DIM = 32  # narrower rows gain nothing worth a slower gather

FeatureSpec = str | list[str] | list[str | dict[str, object]] | dict[str, object]


@dataclass(frozen=True)
class SparseRows(SparseColumn):
    """Sparse rows of a table to write."""

    @property
    def num_rows(self) -> int:
        return len(self.indptr) - 1

    def density(self) -> float:
        cells = self.num_rows * self.dim
        return len(self.indices) / cells if cells else 1.0

    def canonical(self) -> SparseRows:
        rows = np.repeat(np.arange(self.num_rows), np.diff(self.indptr))
        cells, inverse = np.unique(rows * self.dim + self.indices, return_inverse=True)
        values = np.bincount(inverse, weights=self.values, minlength=len(cells)).astype(np.float32)
        indptr = np.zeros(self.num_rows + 1, np.int64)
        np.cumsum(np.bincount(cells // self.dim, minlength=self.num_rows), out=indptr[1:])
        return SparseRows(indptr, cells % self.dim, values, self.dim)

    def take(self, position: np.ndarray) -> SparseRows:
        """The rows at these positions; -1 is a row without entries."""
        lengths = np.where(position < 0, 0, np.diff(self.indptr, append=self.indptr[-1])[position])
        indptr = np.zeros(len(position) + 1, np.int64)
        np.cumsum(lengths, out=indptr[1:])
        # entry k of row i is at the row's old start plus k minus the row's new start
        shift = np.repeat(self.indptr[position] - indptr[:-1], lengths)
        entries = np.arange(indptr[-1]) + shift
        values = None if self.values is None else self.values[entries]
        return SparseRows(indptr, self.indices[entries], values, self.dim)

    def to_dense(self) -> np.ndarray:
        """Rows as float32 [num_rows, dim]; repeated entries add up."""
        dense = np.zeros((self.num_rows, self.dim), np.float32)
        rows = np.repeat(np.arange(self.num_rows), np.diff(self.indptr))
        values: np.ndarray | np.float32 = np.float32(1) if self.values is None else self.values
        np.add.at(dense, (rows, self.indices), values)
        return dense


Features = np.ndarray | SparseRows


@dataclass(frozen=True)
class FeatureColumns:
    """The Arrow columns of one feature or label, and their description in the manifest."""

    columns: Mapping[str, pa.Array]
    spec: FeatureSpec


def feature_columns(name: str, features: Features, may_be_sparse: bool = True) -> FeatureColumns:
    """Stores features in the smaller way: sparse rows as lists, others as dense rows.

    Args:
        name: column name; sparse rows have `<name>_indices` and, unless all ones, `<name>_values`.
        features: [num_rows], [num_rows, dim] or sparse rows. Those of edges are dense.
    """
    if isinstance(features, SparseRows):
        if may_be_sparse and features.density() < SPARSE_BELOW:
            return _sparse_columns(name, features)
        return dense_columns(name, features.to_dense())
    # only float32: list values are float32, so other types would not come back as they were
    is_wide = features.ndim == 2 and features.shape[1] >= SPARSE_MIN_DIM
    may_be_sparse = may_be_sparse and is_wide and features.dtype == np.float32
    if may_be_sparse and np.count_nonzero(features) < SPARSE_BELOW * features.size:
        return _sparse_columns(name, sparse_rows(features))
    return dense_columns(name, features)


def sparse_rows(dense: np.ndarray) -> SparseRows:
    """Non-zeros of [num_rows, dim] as CSR rows, ascending within a row; float32 values."""
    rows, indices = np.nonzero(dense)
    values = dense[rows, indices].astype(np.float32)
    indptr = np.zeros(len(dense) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(dense)), out=indptr[1:])
    return SparseRows(indptr, indices, None if (values == 1).all() else values, dense.shape[1])


def dense_columns(name: str, rows: np.ndarray) -> FeatureColumns:
    if rows.ndim == 1:
        return FeatureColumns({name: pa.array(rows)}, name)
    width = int(np.prod(rows.shape[1:]))
    rows = np.ascontiguousarray(rows.reshape(len(rows), width), _stored_dtype(rows.dtype))
    row_type = pa.binary(rows.shape[1] * rows.itemsize)
    column = pa.FixedSizeBinaryArray.from_buffers(row_type, len(rows), [None, pa.py_buffer(rows)])
    is_default = rows.dtype == np.float32
    spec: FeatureSpec = name if is_default else {"columns": name, "dtype": rows.dtype.name}
    return FeatureColumns({name: column}, spec)


def label_columns(name: str, labels: np.ndarray) -> FeatureColumns:
    if labels.ndim == 1:
        return FeatureColumns({name: pa.array(labels)}, name)
    kind = "regression" if labels.dtype.kind == "f" else "multilabel"
    rows = np.ascontiguousarray(labels, _stored_dtype(labels.dtype))
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
    return FeatureColumns({name: column}, {"columns": name, "kind": kind})


def _stored_dtype(dtype: np.dtype) -> np.dtype:
    replacement = {"bool": "uint8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
    return np.dtype(replacement.get(dtype.name, dtype.name)).newbyteorder("<")


def split_column(codes: np.ndarray) -> pa.Array:
    """Split codes uint8 [n] (0 none, 1 train, 2 val, 3 test) as strings, null for none."""
    names = pa.array(SPLIT_NAMES)
    indices = pa.array(codes.astype(np.int8) - 1, mask=codes == 0)
    return pa.DictionaryArray.from_arrays(indices, names).cast(pa.string())


def _sparse_columns(name: str, rows: SparseRows) -> FeatureColumns:
    indices_name, values_name = f"{name}_indices", f"{name}_values"
    columns = {indices_name: _list_column(rows.indptr, rows.indices.astype(np.int32))}
    spec: dict[str, object] = {"indices": indices_name, "values": None, "dim": rows.dim}
    if rows.values is not None and not (rows.values == 1).all():
        columns[values_name] = _list_column(rows.indptr, rows.values.astype(np.float32))
        spec["values"] = values_name
    return FeatureColumns(columns, spec)


def _list_column(indptr: np.ndarray, items: np.ndarray) -> pa.Array:
    # large_list offsets are 64-bit: one table may hold more than 2^31 non-zeros
    return pa.LargeListArray.from_arrays(pa.array(indptr.astype(np.int64)), pa.array(items))
