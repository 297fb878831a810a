"""Compiled loops over links: split codes of pairs, supervision edges, filtered adjacencies.

A code is one byte per edge. Bits 0 and 1 are when the edge may carry messages: 0 always, 1 from
training on, 2 after validation, 3 never. Bits 2 and 3 are the split of a supervision edge, 0 for
none. HELD marks training edges that are only for supervision.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.edge_kernels import sort_stably
from raygnn.data.hashing import splitmix64
from raygnn.data.intrinsics import first_at_least

STAGE_MASK = 3
SUPERVISION_SHIFT = 2
HELD = 16
# Makes the draw for supervision independent of the draw for the split: digits of sqrt(2).
_HELD_SALT = np.uint64(0x6A09E667F3BCC908)
_SHIFT_11 = np.uint64(11)
_UNIT = 2.0**-53


@njit(nogil=True, cache=True, inline="always")
def pair_hash(first: np.uint64, second: np.uint64) -> np.uint64:
    return splitmix64(splitmix64(min(first, second)) + max(first, second))


@njit(nogil=True, cache=True)
def hash_splits(
    indptr: np.ndarray,
    indices: np.ndarray,
    row_hashes: np.ndarray,
    column_hashes: np.ndarray,
    bounds: np.ndarray,
    out: np.ndarray,
) -> None:
    """Split of each edge by the hash of its unordered pair. `bounds`: ends of splits on [0, 1)."""
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            hashed = pair_hash(row_hashes[row], column_hashes[indices[i]])
            position = np.float64(hashed >> _SHIFT_11) * _UNIT
            code = 1
            for bound in bounds:
                code += position >= bound
            out[i] = code & 3


@njit(nogil=True, cache=True)
def hold_share(
    indptr: np.ndarray,
    indices: np.ndarray,
    row_hashes: np.ndarray,
    column_hashes: np.ndarray,
    share: float,
    codes: np.ndarray,
) -> None:
    """Marks a share of the training pairs HELD, and removes supervision from the others."""
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            if codes[i] & STAGE_MASK != 1:
                continue
            hashed = pair_hash(row_hashes[row], column_hashes[indices[i]])
            position = np.float64(splitmix64(hashed ^ _HELD_SALT) >> _SHIFT_11) * _UNIT
            codes[i] = codes[i] | HELD if position < share else 1


@njit(nogil=True, cache=True)
def sort_rows(indptr: np.ndarray, indices: np.ndarray, order: np.ndarray) -> None:
    for row in range(len(indptr) - 1):
        start, stop = indptr[row], indptr[row + 1]
        for i in range(start, stop):
            order[i] = i
        sort_stably(order, start, stop, indices)


@njit(nogil=True, cache=True, inline="always")
def _extreme(
    indptr: np.ndarray,
    columns: np.ndarray,
    codes: np.ndarray,
    row: int,
    column: int,
    earliest: bool,
) -> int:
    stop = indptr[row + 1]
    i = first_at_least(columns, indptr[row], stop, column)
    extreme = 0
    while i < stop and columns[i] == column:
        code = codes[i]
        if extreme == 0 or (code != 0 and (code < extreme) == earliest):
            extreme = code
        i += 1
    return extreme


@njit(nogil=True, cache=True)
def resolve_pairs(
    indptr: np.ndarray,
    columns: np.ndarray,
    splits: np.ndarray,
    is_symmetric: bool,
    earliest: bool,
    out: np.ndarray,
) -> None:
    """Codes from splits that may differ between the edges of one pair; rows are sorted.

    Args:
        is_symmetric: rows and columns have one node type: a pair has edges both ways.
        earliest: an edge is supervision if its split is the earliest of its pair, and carries
            messages by its own split. Otherwise, a training edge is not supervision if its pair is
            held out, and all edges of a pair carry messages by their latest split.
    """
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            code = _extreme(indptr, columns, splits, row, columns[i], earliest)
            if is_symmetric:
                other = _extreme(indptr, columns, splits, columns[i], row, earliest)
                if code == 0 or (other != 0 and (other < code) == earliest):
                    code = other
            split = splits[i]
            is_late = split != code if earliest else split == 1 and code != 1
            supervision = 0 if is_late else split
            out[i] = (split if earliest else code) | supervision << SUPERVISION_SHIFT


@njit(nogil=True, cache=True)
def look_up_codes(
    indptr: np.ndarray,
    indices: np.ndarray,
    table: tuple[np.ndarray, np.ndarray, np.ndarray],
    by_row: bool,
    by_column: bool,
    out: np.ndarray,
) -> None:
    """Message codes of edges from those of the same pairs in a table with sorted rows.

    The latest of several counts; a pair missing in the table may always carry messages.

    Args:
        table: its row bounds, columns and codes.
        by_row, by_column: whether rows here, and columns here, are rows of the table.
    """
    table_indptr, table_columns, table_codes = table
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            stage, held = 0, 0
            for side in range(2):
                if not (by_row if side == 0 else by_column):
                    continue
                table_row = row if side == 0 else indices[i]
                column = indices[i] if side == 0 else row
                stop = table_indptr[table_row + 1]
                j = first_at_least(table_columns, table_indptr[table_row], stop, column)
                while j < stop and table_columns[j] == column:
                    stage = max(stage, table_codes[j] & STAGE_MASK)
                    held |= table_codes[j] & HELD
                    j += 1
            out[i] = stage | held if stage == 1 else stage


@njit(nogil=True, cache=True)
def count_messages(
    indptr: np.ndarray, codes: np.ndarray, last_stage: int, held_too: bool, out_indptr: np.ndarray
) -> None:
    """Row bounds of the edges that may carry messages up to a stage."""
    count = 0
    for row in range(len(indptr) - 1):
        for i in range(indptr[row], indptr[row + 1]):
            count += (codes[i] & STAGE_MASK) <= last_stage and (held_too or not codes[i] & HELD)
        out_indptr[row + 1] = count


@njit(nogil=True, cache=True)
def keep_messages(
    indices: np.ndarray,
    codes: np.ndarray,
    positions: np.ndarray,
    last_stage: int,
    held_too: bool,
    out_indices: np.ndarray,
    out_positions: np.ndarray,
) -> None:
    write = 0
    for i in range(len(indices)):
        if (codes[i] & STAGE_MASK) <= last_stage and (held_too or not codes[i] & HELD):
            out_indices[write] = indices[i]
            out_positions[write] = positions[i] if len(positions) else i
            write += 1


@njit(nogil=True, cache=True)
def distinct_in_rows(
    table: tuple[np.ndarray, np.ndarray],
    codes: np.ndarray,
    split: int,
    times: np.ndarray,
    out_indptr: np.ndarray,
    out_columns: np.ndarray,
    out_times: np.ndarray,
) -> None:
    """The distinct pairs whose edges are supervision of a split, with the earliest of their times.

    `times`: of the edges, or empty. Empty `out_columns` only count pairs.
    """
    indptr, columns = table
    write = 0
    for row in range(len(indptr) - 1):
        first = write
        last = -1
        for i in range(indptr[row], indptr[row + 1]):
            if codes[i] >> SUPERVISION_SHIFT & 3 != split:
                continue
            is_new = write == first or columns[i] != last
            last = columns[i]
            if len(out_columns):
                if is_new:
                    out_columns[write] = columns[i]
                if len(times):
                    place = write if is_new else write - 1
                    if is_new or times[i] < out_times[place]:
                        out_times[place] = times[i]
            write += is_new
        out_indptr[row + 1] = write


@njit(nogil=True, cache=True)
def mark_known(
    indptr: np.ndarray,
    columns: np.ndarray,
    rows: np.ndarray,
    sorted_wanted: np.ndarray,
    order: np.ndarray,
    out: np.ndarray,
) -> None:
    """`out[i, order[j]] = True` if (rows[i], sorted_wanted[j]) is in a table.

    The last bits of a column index its possible position among those wanted: most columns of a row
    are not wanted, and few need a search.
    """
    num_wanted = len(sorted_wanted)
    size = 64
    while size < 8 * num_wanted:
        size *= 2
    first_with_bits = np.full(size, -1, np.int32)
    for j in range(num_wanted - 1, -1, -1):
        first_with_bits[sorted_wanted[j] & (size - 1)] = j
    for i in range(len(rows)):
        start, stop = indptr[rows[i]], indptr[rows[i] + 1]
        if stop - start > 16 * num_wanted:
            for j in range(num_wanted):
                start = first_at_least(columns, start, stop, sorted_wanted[j])
                out[i, order[j]] = start < stop and columns[start] == sorted_wanted[j]
            continue
        for k in range(start, stop):
            column = columns[k]
            j = first_with_bits[column & (size - 1)]
            if j < 0:
                continue
            if sorted_wanted[j] != column:
                j = first_at_least(sorted_wanted, j, num_wanted, column)
            while j < num_wanted and sorted_wanted[j] == column:
                out[i, order[j]] = True
                j += 1
