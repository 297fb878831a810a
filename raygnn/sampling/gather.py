"""Kernels that copy rows."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.sampling.intrinsics import prefetch

_LINE_BYTES = 64
# How many cache lines are asked for ahead (of rows of 512 bytes in a file of 1 GB: two thirds of
# the time without), and of one row: the processor itself goes on from there.
_LINES_AHEAD = 128
_LINES_OF_ROW = 8


@njit(nogil=True, cache=True)
def _copy_rows(rows, ids, out):  # type: ignore[no-untyped-def]
    width = rows.shape[1]
    line = _LINE_BYTES // rows.itemsize
    num_lines = min((width + line - 1) // line, _LINES_OF_ROW)
    ahead = _LINES_AHEAD // num_lines
    flat = rows.reshape(-1)
    for i in range(len(ids)):
        if i + ahead < len(ids):
            first = ids[i + ahead] * width
            for j in range(num_lines):
                prefetch(flat, first + j * line)
        row = ids[i]
        # By two indices: of one that is a sum numba checks the sign, element by element.
        for j in range(width):
            out[i, j] = rows[row, j]


@njit(nogil=True, cache=True)
def _fill_dense(indptr, indices, ids, out):  # type: ignore[no-untyped-def]
    for i in range(len(ids)):
        out[i] = 0
        for j in range(indptr[ids[i]], indptr[ids[i] + 1]):
            out[i, indices[j]] += np.float32(1)


@njit(nogil=True, cache=True)
def _fill_dense_values(indptr, indices, values, ids, out):  # type: ignore[no-untyped-def]
    for i in range(len(ids)):
        out[i] = 0
        for j in range(indptr[ids[i]], indptr[ids[i] + 1]):
            out[i, indices[j]] += np.float32(values[j])


def gather_rows(rows: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    """Copies `rows[ids]` into `out`.

    Args:
        rows: C-contiguous, of any type: bytes are copied.
        ids: int64, rows of `rows`.
        out: C-contiguous, of the same type and row shape.
    """
    if len(ids) == 0 or out.nbytes == 0:
        return
    row_bytes = out.nbytes // len(ids)
    # The widest word that divides a row: few kernels to compile for all types, and full vectors.
    word = next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)
    dtype = np.dtype(f"u{word}")
    _copy_rows(_words(rows, dtype), ids, _words(out, dtype))


def gather_sparse_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray | None,
    ids: np.ndarray,
    out: np.ndarray,
) -> None:
    """Fills the rows of `out`, float32, from CSR rows; equal indices of a row add up.

    Args:
        values: None stands for ones.
    """
    if values is None:
        _fill_dense(indptr, indices, ids, out)
    elif values.dtype == np.float16:  # a type that numba does not compile
        _fill_dense_values(indptr, indices, values.astype(np.float32), ids, out)
    else:
        _fill_dense_values(indptr, indices, values, ids, out)


def _words(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array.reshape(len(array), -1).view(dtype)
