"""What a sampler is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.sampling.rng import BatchKey


@dataclass(frozen=True, eq=False)
class SampleRequest:
    """The arguments of `NeighborSampler.sample`, from which a neighborhood follows.

    Attributes:
        seeds: by node type, int64 dense ids.
        key, exclude, exclude_for, times, isolated: as of the sampler.
    """

    seeds: Mapping[str, np.ndarray]
    key: BatchKey
    exclude: Mapping[EdgeType, np.ndarray] | None = None
    exclude_for: Mapping[EdgeType, np.ndarray] | None = None
    times: Mapping[str, np.ndarray] | None = None
    isolated: Mapping[str, np.ndarray] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that are given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def digest(self, sampler: str) -> str:
        """16 hexadecimal digits of a hash over names, types and values of all arguments.

        Args:
            sampler: its fingerprint: equal digests are equal neighborhoods.
        """
        hashed = hashlib.blake2b(sampler.encode(), digest_size=8)
        for name, given in self.arguments.items():
            if name == "key":
                hashed.update(f"{name}={given};".encode())
                continue
            for type_, values in given.items():
                of = type_ if isinstance(type_, str) else edge_type_name(type_)
                hashed.update(f"{name}.{of}:{values.dtype}{values.shape};".encode())
                hashed.update(np.ascontiguousarray(values).data)
        return hashed.hexdigest()
