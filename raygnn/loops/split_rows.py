"""Hashes of the rows that metrics were computed on, to compare runs on equal rows."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from raygnn.data.hashing import hash_ids, splitmix64_array
from raygnn.data.time_units import TIME, Time

_NUM_KEPT = 256


@dataclass(frozen=True)
class SplitRows:
    """Rows of a split.

    Attributes:
        keys: uint64 [num_rows], hashes of original ids and times.
        labels: [num_rows] or [num_rows, num_labels]; None for links.
        span: the first and the last time; None without times.
    """

    keys: np.ndarray
    labels: np.ndarray | None = None
    span: tuple[Time, Time] | None = None

    @classmethod
    def of(
        cls, columns: Mapping[str, pa.Array | np.ndarray], labels: np.ndarray | None = None
    ) -> SplitRows:
        """`columns`: original ids and times."""
        num_rows = len(next(iter(columns.values())))
        keys = np.zeros(num_rows, np.uint64)
        for values in columns.values():
            is_number = isinstance(values, np.ndarray)
            hashes = splitmix64_array(values) if is_number else hash_ids(values, 0)
            keys = splitmix64_array(keys ^ hashes)
        times = columns.get(TIME)
        if times is None or not num_rows:
            return cls(keys, labels)
        assert isinstance(times, np.ndarray)
        return cls(keys, labels, (times.min().item(), times.max().item()))

    @cached_property
    def digest(self) -> str:
        """Equal for the same rows with the same labels, in any order."""
        keys = self.keys
        if self.labels is not None:
            for column in self.labels.reshape(len(keys), -1).astype(np.float64).T:
                keys = splitmix64_array(keys ^ splitmix64_array(column))
        return hashlib.sha256(np.sort(keys).tobytes()).hexdigest()

    @property
    def sketch(self) -> str:
        """The least hashes, by which another split's overlap shows, as base64.

        Of n rows, m that another split contains are missed with a probability of
        (1 - m / n)^256.
        """
        least = np.sort(self.keys)[:_NUM_KEPT]
        return base64.b64encode(least.astype("<u8").tobytes()).decode()

    def overlaps(self, sketch: str) -> bool:
        """Whether some rows are among those of a sketch."""
        least = np.frombuffer(base64.b64decode(sketch), "<u8")
        return bool(np.isin(self.keys, least).any())
