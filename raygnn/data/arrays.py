"""Arrays in `.npy` files that several processes fill slice by slice, and that readers map.

Rows of different lengths (strings, sparse features) are offsets and their elements.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from raygnn.errors import DataError, ResourceError

_SYNC_THREADS = 8

# NumPy has Python parse a file's header, which fails now and then where threads do so at a time:
# "SystemError: AST constructor recursion depth mismatch", CPython issue 106905.
_HEADERS = threading.Lock()


def create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> None:
    """Creates a zero-filled `.npy` file with all of its disk space reserved.

    A hole in a mapped file that the disk cannot fill later would kill the writer with SIGBUS.

    Raises:
        ResourceError: the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if 0 in shape:
        with path.open("wb") as file:
            np.save(file, np.zeros(shape, dtype))
        return
    np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
    size = path.stat().st_size
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise ResourceError(
                f"data.cache_dir: no room for {size:,} bytes of {path}: {error.strerror}. "
                "Free some disk space, or set data.cache_dir to a larger disk.",
                id="data-cache-full",
            ) from error


def array_bytes_below(folder: Path) -> int:
    """Bytes of the `.npy` files in a folder and in those below it."""
    return sum(file.stat().st_size for file in folder.rglob("*.npy"))


def open_array(path: Path, mode: Literal["c", "r", "r+"] = "c") -> np.ndarray:
    """Maps a `.npy` file as a plain ndarray.

    Args:
        mode: "c" copy-on-write (writes stay in this process), "r" read-only, "r+" writes through.
    Raises:
        DataError: the file is cut off, or does not begin as a `.npy` file does.
    """
    with _HEADERS:
        try:
            array = _mapped(path, mode)
        except OSError:
            raise
        except Exception as error:  # NumPy lets those of its parser pass: TokenError, TypeError
            raise DataError(
                f"{path} is damaged: {type(error).__name__}: {error}. Remove the folder that it "
                "belongs to, so that the next run writes it again.",
                id="array-damaged",
            ) from error
    # A `.npy` file knows bfloat16 as two bytes of nothing in particular; no other array is that.
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def _mapped(path: Path, mode: Literal["c", "r", "r+"]) -> np.ndarray:
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode=mode))
    except ValueError:
        # An array without elements cannot be mapped.
        with path.open("rb") as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
        if array.size:
            raise
        return array


def sync_folder(folder: Path) -> None:
    """Brings every file below a folder, and the folders' own entries, to the disk."""
    paths = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(folder)
        for name in [*names, "."]
    ]
    # The disk takes several waits at once in little more time than one.
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(sync_entry, paths))


def sync_entry(path: str | Path) -> None:
    """Brings a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    chunks = (slice(start, start + _CHUNK_ROWS) for start in range(0, len(keep), _CHUNK_ROWS))
    _rewrite(path, int(keep.sum()), (old[chunk][keep[chunk]] for chunk in chunks))


def keep_ragged_rows(offsets: Path, elements: Sequence[Path], keep: np.ndarray) -> None:
    """Rewrites ragged rows with those under `keep` only."""
    old_offsets = open_array(offsets, "r")
    lengths = np.diff(old_offsets)
    for path in elements:
        kept = _kept_elements(open_array(path, "r"), old_offsets, lengths, keep)
        _rewrite(path, int(lengths[keep].sum()), kept)
    new_offsets = np.zeros(int(keep.sum()) + 1, np.int64)
    np.cumsum(lengths[keep], out=new_offsets[1:])
    _rewrite(offsets, len(new_offsets), [new_offsets])


def _kept_elements(
    elements: np.ndarray, offsets: np.ndarray, lengths: np.ndarray, keep: np.ndarray
) -> Iterator[np.ndarray]:
    for start in range(0, len(keep), _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, len(keep))
        mask = np.repeat(keep[start:stop], lengths[start:stop])
        yield elements[offsets[start] : offsets[stop]][mask]


def _rewrite(path: Path, num_rows: int, parts: Iterable[np.ndarray]) -> None:
    """Replaces an array by parts of it; a reader that has it mapped keeps the old one."""
    old, new_path = open_array(path, "r"), path.with_suffix(".kept")
    create_array(new_path, (num_rows, *old.shape[1:]), old.dtype)
    new, position = open_array(new_path, "r+"), 0
    for rows in parts:
        new[position : position + len(rows)] = rows
        position += len(rows)
    new_path.replace(path)
