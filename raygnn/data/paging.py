"""Random reads of rows of mapped files that are larger than memory.

A page fault also reads surrounding pages, up to megabytes (`read_ahead_kb`). If the file fits into
memory, all of it is soon there. Otherwise each random row costs megabytes that evict others: 102
rows/s were measured where 15,000 are possible.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import psutil
from numba import njit

from raygnn.data.intrinsics import call_with_range

_PAGE_BYTES = 4096
_RANDOM, _WILL_NEED = 1, 3  # of madvise, on Linux and macOS
#: Of the memory; the rest is for the processes themselves.
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
    found = [root / "memory.max", root / "memory" / "memory.limit_in_bytes"]
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            found.append(root / path.lstrip("/") / "memory.max")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / path.lstrip("/") / "memory.limit_in_bytes")
    return found


def outgrows_memory(num_bytes: int) -> bool:
    """Whether files of this size do not stay in memory after reading."""
    return num_bytes > _SHARE_FOR_FILES * memory_bytes()


def expect_random_reads(array: np.ndarray) -> None:
    """Makes page faults of a mapped array read only their own page."""
    first = array.ctypes.data & ~(_PAGE_BYTES - 1)
    if array.nbytes and _madvise():
        num_bytes = array.ctypes.data + array.nbytes - first
        _call(_madvise(), first, num_bytes, _RANDOM)


def ask_for_rows(rows: np.ndarray, ids: np.ndarray) -> None:
    """Starts to read many int64 rows of a mapped C-contiguous array together. Consecutive rows are
    requested together.
    """
    if len(ids) and rows.nbytes and _madvise():
        _ask_for_rows(_madvise(), rows.ctypes.data, rows.nbytes // len(rows), ids)


@cache
def _madvise() -> int:
    function = getattr(ctypes.CDLL(None), "madvise", None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0


@njit(nogil=True, cache=True)
def _call(madvise: int, first: int, num_bytes: int, advice: int) -> None:
    call_with_range(madvise, first, num_bytes, advice)


@njit(nogil=True, cache=True)
def _ask_for_rows(madvise: int, base: int, row_bytes: int, ids: np.ndarray) -> None:
    first = last = 0
    for i in range(len(ids)):
        start = base + ids[i] * row_bytes
        stop = start + row_bytes
        start -= start % _PAGE_BYTES
        if first <= start <= last:
            last = max(last, stop)
            continue
        if last > first:
            call_with_range(madvise, first, last - first, _WILL_NEED)
        first, last = start, stop
    call_with_range(madvise, first, last - first, _WILL_NEED)
