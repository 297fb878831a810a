"""Arrays in `.npy` files that several processes fill slice by slice and readers map.

Rows of different lengths (strings, sparse features) are offsets and elements.

A fault of a mapped file also reads what lies around it, up to megabytes (`read_ahead_kb`). If the
file fits into memory, all of it is soon there. Otherwise each random row costs a read of megabytes
that evict others: measured, 102 rows/s instead of 15,000.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
import psutil
from numba import njit, types
from numpy.typing import DTypeLike

from raygnn.errors import DataError, ResourceError

_SYNC_THREADS = 8
_WEIGHT_BITS = 24

# NumPy has Python parse a file's header, which fails now and then where threads do so at a time:
# "SystemError: AST constructor recursion depth mismatch", CPython issue 106905.
_HEADERS = threading.Lock()


#: Ids and positions below it are int32.
MAX_INT32 = np.iinfo(np.int32).max


def index_dtype(*limits: int) -> np.dtype:
    """The narrower type of ids or positions: int32, or int64 if a limit needs it."""
    return np.dtype(np.int32 if max(limits) <= MAX_INT32 else np.int64)


def create_array(path: Path, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Creates a zero-filled `.npy` file with all its disk space reserved, mapped for writing.

    A hole in a mapped file that a full disk cannot fill would kill the writer with SIGBUS. Raises a
    ResourceError if the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if 0 in shape:
        empty = np.zeros(shape, dtype)
        with path.open("wb") as file:
            np.save(file, empty)
        return empty
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
    size = path.stat().st_size
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            raise ResourceError(
                f"data.cache_dir: no room for {size:,} bytes of {path}: {error.strerror}. Set it "
                "to a larger disk. [data-cache-full]"
            ) from error
    return np.asarray(array)


def array_bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.npy"))


def open_array(path: Path, mode: Literal["c", "r", "r+"] = "c") -> np.ndarray:
    """Maps a `.npy` file as a plain ndarray.

    Args:
        mode: "c" copy-on-write (writes stay in this process), "r" read-only, "r+" writes through.
    Raises:
        DataError: the file is truncated, or is not a `.npy` file.
    """
    with _HEADERS:
        try:
            array = _mapped(path, mode)
        except OSError:
            raise
        except Exception as error:  # NumPy's parser also raises TokenError and TypeError
            raise DataError(
                f"{path} is damaged: {type(error).__name__}: {error}. Remove its folder, to write "
                "it again. [array-damaged]"
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
    paths = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(folder)
        for name in [*names, "."]
    ]
    # A disk answers several requests in little more time than one.
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(sync_entry, paths))


def sync_entry(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_BLOCK_ROWS = 1 << 18


@dataclass(frozen=True)
class Rows:
    """A range of rows of an array in a file; without `stop`, to its end."""

    path: Path
    start: int = 0
    stop: int | None = None

    def read(self) -> np.ndarray:
        """Maps the rows read-only like arrays of Ray's object store: kernels compile once."""
        return open_array(self.path, "r")[self.start : self.stop]


#: A folder of arrays, and the numbers of the rows to take from them; None takes all.
Source = tuple[Path, Rows | None]


def gather_rows(
    sources: Sequence[Source],
    name: str | Path,
    out: Path,
    tables: Sequence[np.ndarray] | None = None,
) -> None:
    """Concatenates rows of several arrays into a new array.

    `tables`: for each source, an array that its values index.
    """
    first = open_array(sources[0][0] / name, "r")
    num_rows = sum(_num_rows(folder / name, chosen) for folder, chosen in sources)
    target, start = create_array(out / name, (num_rows, *first.shape[1:]), first.dtype), 0
    for i, (folder, chosen) in enumerate(sources):
        rows = open_array(folder / name, "r")
        for chunk in row_chunks(len(rows), chosen):
            taken = rows[chunk] if tables is None else tables[i][rows[chunk]]
            target[start : start + len(taken)] = taken
            start += len(taken)


def gather_ragged_rows(
    sources: Sequence[Source], offsets: str | Path, elements: Sequence[str | Path], out: Path
) -> None:
    """Concatenates rows of different lengths into new arrays, named as in the sources."""
    num_rows = sum(_num_rows(folder / offsets, chosen, 1) for folder, chosen in sources)
    ends, row = create_array(out / offsets, (num_rows + 1,), np.int64), 1
    for folder, chosen in sources:
        starts = open_array(folder / offsets, "r")
        for chunk in row_chunks(len(starts) - 1, chosen):
            lengths = starts[1:][chunk] - starts[:-1][chunk]
            ends[row : row + len(lengths)] = lengths
            row += len(lengths)
    np.cumsum(ends, out=ends)
    for name in elements:
        first = open_array(sources[0][0] / name, "r")
        shape, position = (int(ends[-1]), *first.shape[1:]), 0
        target = create_array(out / name, shape, first.dtype)
        for folder, chosen in sources:
            starts, values = open_array(folder / offsets, "r"), open_array(folder / name, "r")
            for chunk in row_chunks(len(starts) - 1, chosen):
                if isinstance(chunk, slice):
                    taken = values[starts[chunk.start] : starts[chunk.stop]]
                else:
                    taken = values[ragged_positions(starts, chunk)[1]]
                target[position : position + len(taken)] = taken
                position += len(taken)


def _num_rows(path: Path, chosen: Rows | None, num_ends: int = 0) -> int:
    return len(open_array(path, "r")) - num_ends if chosen is None else len(chosen.read())


def row_chunks(num_rows: int, chosen: Rows | None) -> Iterator[slice | np.ndarray]:
    """Divides all rows, or the chosen ones, into numbers of rows that are worked on together."""
    rows = None if chosen is None else chosen.read()
    num_rows = num_rows if rows is None else len(rows)
    for chunk in row_blocks(num_rows):
        yield chunk if rows is None else rows[chunk]


def ragged_positions(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the elements of some rows of different lengths.

    Returns int64 [num_elements], the number of each element's row among `rows`, and its position.
    """
    lengths = offsets[rows + 1] - offsets[rows]
    number = np.repeat(np.arange(len(rows)), lengths)
    first = offsets[rows] - (np.cumsum(lengths) - lengths)
    return number, np.arange(len(number)) + first[number]


def summable(weights: np.ndarray) -> np.ndarray:
    """Weights in steps of 2^-24 of the largest, float64: sums of up to 2^29 of them are exact, so
    they do not depend on the order. Whole numbers up to 2^24 stay as they are.
    """
    weights = weights.astype(np.float64)
    step = np.ldexp(1.0, int(np.frexp(weights.max(initial=0.0))[1]) - _WEIGHT_BITS)
    return np.asarray(np.rint(weights / step) * step)


#: Rows of a training table that a process may hold in memory.
MANY_ROWS = 1 << 24


def row_blocks(num_rows: int) -> Iterator[slice]:
    """Divides rows into blocks that are worked on together."""
    for start in range(0, num_rows, _BLOCK_ROWS):
        yield slice(start, min(start + _BLOCK_ROWS, num_rows))


def thinned(rows: np.ndarray, most: int = MANY_ROWS) -> np.ndarray:
    """Every n-th row, at most `most`. Arrays of one length keep the same rows."""
    return rows[:: -(-len(rows) // most) or 1]


def extremes(values: np.ndarray, rows: np.ndarray) -> tuple[Any, Any]:
    """The least and the greatest value of rows, of which there is at least one."""
    chosen = (values[rows[some]] for some in row_blocks(len(rows)))
    ends = [(some.min().item(), some.max().item()) for some in chosen]
    return min(low for low, _ in ends), max(high for _, high in ends)


_PAGE_BYTES = 4096
_RANDOM, _WILL_NEED = 1, 3  # advice of madvise, on Linux and macOS
#: Share of the memory; the rest is for the processes themselves.
_SHARE_FOR_FILES = 0.8


@cache
def memory_bytes() -> int:
    """Memory of this machine, or of its control group if limited."""
    limits = [psutil.virtual_memory().total]
    for path in _limit_files():
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def _limit_files() -> list[Path]:
    root, groups = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
    files = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            files.append(root / path.lstrip("/") / "memory.max")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / path.lstrip("/") / "memory.limit_in_bytes")
    return files


def outgrows_memory(num_bytes: int) -> bool:
    """Whether files of this size do not stay in memory after reading."""
    return num_bytes > _SHARE_FOR_FILES * memory_bytes()


def expect_random_reads(array: np.ndarray) -> None:
    """Makes page faults of a mapped array read only their own page."""
    first = array.ctypes.data & ~(_PAGE_BYTES - 1)
    if array.nbytes:
        _advise(first, array.ctypes.data + array.nbytes, _RANDOM)


def ask_for_rows(rows: np.ndarray, ids: np.ndarray) -> None:
    """Starts to read rows of a mapped C-contiguous array. Consecutive rows are one request."""
    if len(ids) and rows.nbytes:
        _ask_for_rows(rows.ctypes.data, rows.nbytes // len(rows), ids)


_madvise = types.ExternalFunction("madvise", types.intc(types.intp, types.uintp, types.intc))


@njit(nogil=True, cache=True)
def _advise(first: int, last: int, advice: int) -> None:
    _madvise(first, last - first, advice)


@njit(nogil=True, cache=True)
def _ask_for_rows(base: int, row_bytes: int, ids: np.ndarray) -> None:
    first = last = 0
    for i in range(len(ids)):
        start = base + ids[i] * row_bytes
        stop = start + row_bytes
        start -= start % _PAGE_BYTES
        if first <= start <= last:
            last = max(last, stop)
            continue
        if last > first:
            _madvise(first, last - first, _WILL_NEED)
        first, last = start, stop
    _madvise(first, last - first, _WILL_NEED)
