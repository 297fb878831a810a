"""Arrays in `.npy` files that several processes fill slice by slice, and that readers map."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from raygnn.errors import ResourceError

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
                "Free some disk space, or set data.cache_dir to a larger disk."
            ) from error


def open_array(path: Path, mode: Literal["c", "r", "r+"] = "c") -> np.ndarray:
    """Maps a `.npy` file as a plain ndarray.

    Args:
        mode: "c" copy-on-write (writes stay in this process), "r" read-only, "r+" writes through.
    """
    with _HEADERS:
        try:
            mapped = np.load(path, mmap_mode=mode)
        except ValueError:
            # An array without elements cannot be mapped.
            mapped = np.load(path)
            if mapped.size:
                raise
    array = np.asarray(mapped)
    # A `.npy` file knows bfloat16 as two bytes of nothing in particular; no other array is that.
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def sync_folder(folder: Path) -> None:
    """Brings every file below a folder, and the folders' own entries, to the disk."""
    paths = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(folder)
        for name in [*names, "."]
    ]
    # The disk takes several waits at once in little more time than one.
    with ThreadPoolExecutor(_SYNC_THREADS) as pool:
        list(pool.map(_sync, paths))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
