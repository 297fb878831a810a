"""Working arrays that are kept from one batch to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike

T = TypeVar("T")

_GROWTH = 1.25  # batches vary in size; a little room spares most of them an allocation


class Scratch:
    """Named arrays, grown when needed and never shrunk; for one thread at a time."""

    def __init__(self) -> None:
        self._arrays: dict[str, np.ndarray] = {}

    def array(self, name: str, size: int, dtype: DTypeLike) -> np.ndarray:
        """The first `size` elements of the array of that name, with whatever it holds.

        Growing drops what it holds.
        """
        array = self._arrays.get(name)
        if array is None or len(array) < size or array.dtype != dtype:
            array = self._arrays[name] = np.empty(int(size * _GROWTH) + 16, dtype)
        return array[:size]

    def zeros(self, name: str, size: int, dtype: DTypeLike) -> np.ndarray:
        """As `array`, of zeros: whoever writes to it must leave zeros behind."""
        array = self._arrays.get(name)
        if array is None or len(array) < size or array.dtype != dtype:
            array = self._arrays[name] = np.zeros(size, dtype)
        return array[:size]


class Pool(Generic[T]):
    """Lends an object to each thread that asks; as many are made as were ever out at once.

    Copies and unpickled ones start empty.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Pool[T]], tuple[Callable[[], T]]]:
        return (Pool, (self._make,))

    @contextmanager
    def lend(self) -> Iterator[T]:
        """An object that nobody else has until the block is left."""
        with self._lock:
            lent = self._free.pop() if self._free else None
        if lent is None:
            lent = self._make()
        try:
            yield lent
        finally:
            with self._lock:
                self._free.append(lent)
