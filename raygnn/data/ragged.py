"""Rows of different lengths on disk (strings, sparse features): offsets and their elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raygnn.data.arrays import create_array, open_array

_CHUNK_ROWS = 1 << 18


def join_parts(
    lengths: Sequence[Path], elements: Mapping[Path, tuple[Sequence[Path], np.dtype]], out: Path
) -> None:
    """Joins the parts that the tasks wrote, in order, and removes them.

    Args:
        lengths: files with the lengths of the rows.
        elements: target file -> the files with the elements of these rows, and their dtype.
        out: file that gets the offsets, int64 [n + 1].
    """
    counts = [open_array(path, "r") for path in lengths]
    create_array(out, (sum(len(count) for count in counts) + 1,), np.int64)
    offsets = open_array(out, "r+")
    row, total = 0, 0
    for count in counts:
        ends = offsets[row + 1 : row + 1 + len(count)]
        np.cumsum(count, out=ends)
        ends += total
        row, total = row + len(count), int(offsets[row + len(count)])
    for target, (parts, dtype) in elements.items():
        create_array(target, (total,), dtype)
        joined = open_array(target, "r+")
        start = 0
        for part in parts:
            values = open_array(part, "r")
            joined[start : start + len(values)] = values
            start += len(values)
            part.unlink()
    for path in lengths:
        path.unlink()


def keep_rows(path: Path, keep: np.ndarray) -> None:
    """Rewrites a file of fixed-width rows with those under `keep` only."""
    old = open_array(path, "r")
    kept = path.with_suffix(".kept")
    create_array(kept, (int(keep.sum()), *old.shape[1:]), old.dtype)
    new = open_array(kept, "r+")
    position = 0
    for start in range(0, len(keep), _CHUNK_ROWS):
        rows = old[start : start + _CHUNK_ROWS][keep[start : start + _CHUNK_ROWS]]
        new[position : position + len(rows)] = rows
        position += len(rows)
    kept.replace(path)


def keep_ragged_rows(offsets: Path, elements: Sequence[Path], keep: np.ndarray) -> None:
    """Rewrites ragged rows with those under `keep` only."""
    old_offsets = open_array(offsets, "r")
    lengths = np.diff(old_offsets)
    for path in elements:
        old = open_array(path, "r")
        kept = path.with_suffix(".kept")
        create_array(kept, (int(lengths[keep].sum()),), old.dtype)
        new = open_array(kept, "r+")
        position = 0
        for start in range(0, len(keep), _CHUNK_ROWS):
            stop = min(start + _CHUNK_ROWS, len(keep))
            mask = np.repeat(keep[start:stop], lengths[start:stop])
            rows = old[old_offsets[start] : old_offsets[stop]][mask]
            new[position : position + len(rows)] = rows
            position += len(rows)
        kept.replace(path)
    new_offsets = np.zeros(int(keep.sum()) + 1, np.int64)
    np.cumsum(lengths[keep], out=new_offsets[1:])
    with offsets.with_suffix(".kept").open("wb") as file:
        np.save(file, new_offsets)
    offsets.with_suffix(".kept").replace(offsets)
