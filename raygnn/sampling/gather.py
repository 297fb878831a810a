from __future__ import annotations

import ml_dtypes
import numpy as np
from numba import njit

from raygnn.data.intrinsics import prefetch
from raygnn.data.standardization import Affine

_LINE_BYTES = 64
# Cache lines that are prefetched (of rows of 512 bytes in a file of 1 GB: two thirds of
# the time without), and of one row: the processor itself continues from there.
_LINES_AHEAD = 128
_LINES_OF_ROW = 8
_UNSCALED = Affine(*np.zeros((3, 0), np.float32))
_HALF_SCALE = np.float32(2.0**112)  # the exponents of float32 and float16 begin so far apart


@njit(nogil=True, cache=True)
def _reach(rows):  # type: ignore[no-untyped-def]
    line = _LINE_BYTES // rows.itemsize
    num_lines = min((rows.shape[1] + line - 1) // line, _LINES_OF_ROW)
    return line, num_lines, _LINES_AHEAD // num_lines


@njit(nogil=True, cache=True)
def _next_row(flat, width, ids, i, reach):  # type: ignore[no-untyped-def]
    line, num_lines, ahead = reach
    if i + ahead < len(ids):
        first = ids[i + ahead] * width
        for j in range(num_lines):
            prefetch(flat, first + j * line)
    return ids[i]


@njit(nogil=True, cache=True)
def _copy_rows(rows, ids, out):  # type: ignore[no-untyped-def]
    width, flat = rows.shape[1], rows.reshape(-1)
    reach = _reach(rows)
    for i in range(len(ids)):
        row = _next_row(flat, width, ids, i, reach)
        # By two indices: of one that is a sum numba checks the sign, element by element.
        for j in range(width):
            out[i, j] = rows[row, j]


@njit(nogil=True, cache=True)
def _scale_rows(rows, ids, shift, factor, offset, out):  # type: ignore[no-untyped-def]
    """Copies rows as float32, each element x as (x - shift) * factor + offset."""
    width, flat = rows.shape[1], rows.reshape(-1)
    reach = _reach(rows)
    for i in range(len(ids)):
        row = _next_row(flat, width, ids, i, reach)
        for j in range(width):
            out[i, j] = (rows[row, j] - shift[j]) * factor[j] + offset[j]


@njit(nogil=True, cache=True)
def _widen_rows(rows, ids, words, shift, factor, offset, out):  # type: ignore[no-untyped-def]
    """Copies float16 rows, given as uint16, to float32. `words` is `out` as uint32.

    The bits of a half, moved to their position in a float, are its value times 2^-112, also if
    subnormal; only infinities and NaN need their exponent set. Then as `_scale_rows`, unless
    `factor` is empty.
    """
    width, flat = rows.shape[1], rows.reshape(-1)
    reach = _reach(rows)
    for i in range(len(ids)):
        row = _next_row(flat, width, ids, i, reach)
        # Three loops of one kind of number each become vector instructions; one of all does not.
        for j in range(width):
            words[i, j] = np.uint32(rows[row, j] & np.uint16(0x7FFF)) << np.uint32(13)
        for j in range(width):
            out[i, j] *= _HALF_SCALE
        for j in range(width):
            half = np.uint32(rows[row, j])
            is_special = np.uint32((half & np.uint32(0x7C00)) == np.uint32(0x7C00))
            words[i, j] |= (half & np.uint32(0x8000)) << np.uint32(16)
            words[i, j] |= is_special * np.uint32(0x7F800000)
        for j in range(len(factor)):
            out[i, j] = (out[i, j] - shift[j]) * factor[j] + offset[j]


@njit(nogil=True, cache=True)
def _shift_rows(rows, ids, words, shift, factor, offset, out):  # type: ignore[no-untyped-def]
    """Copies bfloat16 rows, given as uint16, into the upper halves of float32.

    `words` is `out` as uint32. Then as `_scale_rows`, unless `factor` is empty.
    """
    width, flat = rows.shape[1], rows.reshape(-1)
    reach = _reach(rows)
    for i in range(len(ids)):
        row = _next_row(flat, width, ids, i, reach)
        for j in range(width):
            words[i, j] = np.uint32(rows[row, j]) << np.uint32(16)
        for j in range(len(factor)):
            out[i, j] = (out[i, j] - shift[j]) * factor[j] + offset[j]


@njit(nogil=True, cache=True)
def _fill_dense(indptr, indices, values, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = 0
        for j in range(indptr[i], indptr[i + 1]):
            out[i, indices[j]] += values[j] if len(values) else np.float32(1)


@njit(nogil=True, cache=True)
def _copy_entries(indptr, ids, offsets, entries, out):  # type: ignore[no-untyped-def]
    for i in range(len(ids)):
        first = indptr[ids[i]]
        for j in range(offsets[i + 1] - offsets[i]):
            out[offsets[i] + j] = entries[first + j]


def is_half(dtype: np.dtype) -> bool:
    return dtype in (np.float16, ml_dtypes.bfloat16)


def gather_rows(rows: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    """Copies `rows[ids]` into `out`, byte by byte.

    Args:
        rows: C-contiguous, of any type.
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


def gather_float_rows(
    rows: np.ndarray, ids: np.ndarray, out: np.ndarray, affine: Affine | None
) -> None:
    """Copies `rows[ids]` into `out` as float32.

    Args:
        rows: float16 or bfloat16, or any numbers to be scaled; C-contiguous.
        ids: int64, rows of `rows`.
        out: float32, C-contiguous, of the same row shape.
        affine: scales each element; None does not scale.
    """
    if len(ids) == 0 or out.size == 0:
        return
    scale = affine or _UNSCALED
    wide = out.reshape(len(out), -1)
    if is_half(rows.dtype):
        halves = _words(rows, np.dtype(np.uint16))
        widen = _shift_rows if rows.dtype == ml_dtypes.bfloat16 else _widen_rows
        widen(halves, ids, wide.view(np.uint32), *scale, wide)
    else:
        assert affine is not None
        _scale_rows(rows.reshape(len(rows), -1), ids, *scale, wide)


def gather_sparse_rows(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray | None,
    ids: np.ndarray,
    out: np.ndarray,
) -> None:
    """Fills float32 rows from CSR rows. Equal indices of a row add up; no `values` are ones."""
    offsets, columns, copied = copy_sparse_rows(indptr, indices, values, ids)
    _fill_dense(offsets, columns, np.empty(0, np.float32) if copied is None else copied, out)


def copy_sparse_rows(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray | None, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Copies the CSR rows `ids`, as int64 and float32. `values` of None are ones."""
    offsets = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(indptr[ids + 1] - indptr[ids], out=offsets[1:])
    columns = np.empty(offsets[-1], np.int64)
    _copy_entries(indptr, ids, offsets, indices, columns)
    if values is None:
        return offsets, columns, None
    is_halves = is_half(values.dtype)  # types that numba does not compile
    copied = np.empty(offsets[-1], np.uint16 if is_halves else np.float32)
    _copy_entries(indptr, ids, offsets, values.view(np.uint16) if is_halves else values, copied)
    return offsets, columns, copied.view(values.dtype).astype(np.float32) if is_halves else copied


def _words(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array.reshape(len(array), -1).view(dtype)
