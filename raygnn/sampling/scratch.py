"""Reused memory: working arrays of a thread, objects lent to threads, freed arrays."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

T = TypeVar("T")

# Batches vary in size; a little room spares most of them an allocation.
_GROWTH = 1.25
_BUFFER_GROWTH = 1.05
_MAX_FREE_BUFFERS = 16  # as many as batches are on their way at a time, with room


class Scratch:
    """Named arrays that grow when needed and never shrink; for one thread at a time."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def array(self, name: str, size: int, dtype: DTypeLike) -> np.ndarray:
        """The first `size` elements of an array, with their old content unless it grows."""
        array = self._arrays.get(name)
        if array is None or len(array) < size or array.dtype != dtype:
            array = self._arrays[name] = np.empty(int(size * _GROWTH) + 16, dtype)
        return array[:size]

    def zeros(self, name: str, size: int, dtype: DTypeLike) -> np.ndarray:
        """Like `array`, filled with zeros. The caller must leave zeros behind."""
        array = self._arrays.get(name)
        if array is None or len(array) < size or array.dtype != dtype:
            array = self._arrays[name] = np.zeros(size, dtype)
        return array[:size]


class Pool(Generic[T]):
    """Lends an object to each thread that asks. It has as many objects as were ever lent together.

    Copies and unpickled pools start empty.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Pool[T]], tuple[Callable[[], T]]]:
        return (Pool, (self._make,))

    @contextmanager
    def lend(self) -> Iterator[T]:
        """An object for exclusive use within the block."""
        with self._lock:
            lent = self._free.pop() if self._free else None
        if lent is None:
            lent = self._make()
        try:
            yield lent
        finally:
            with self._lock:
                self._free.append(lent)


class BufferPool:
    """Allocates arrays and reuses their memory when they are freed. Thread-safe.

    Fresh memory costs a page fault per page: for 36 MB of features, as much time as copying their
    rows. A tensor made by `torch.from_numpy` holds its array, so memory returns with the last
    tensor on it.
    """

    def __init__(self) -> None:
        # Appending and popping are atomic. A lock would not do: an array may be freed anywhere,
        # also while its own thread holds the lock.
        self._free: deque[np.ndarray] = deque(maxlen=_MAX_FREE_BUFFERS)

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return (BufferPool, ())

    def array(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = None
        if buffer is None or len(buffer) < num_bytes:
            buffer = np.empty(int(num_bytes * _BUFFER_GROWTH), np.uint8)
        array = buffer[:num_bytes].view(dtype).reshape(shape)
        weakref.finalize(array, self._free.append, buffer).atexit = False
        return array
