"""A sampled neighborhood as a row of a table, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from raygnn.data.edge_types import EdgeType
from raygnn.sampling.growing_subgraph import fill_columns
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import SampledSubgraph, SampleRequest
from raygnn.sampling.temporal import Temporal

Key = TypeVar("Key", str, EdgeType)

_INT32, _INT64 = np.dtype("<i4"), np.dtype("<i8")
_NONE = -1  # number of seeds of a type without an entry in `seed_index`

#: Columns that locate and verify a row.
_KEYS = (
    ("split", pa.string()),
    ("epoch", pa.int32()),
    ("number", pa.int64()),
    ("request", pa.string()),
)
_ARRAYS = (
    "num_sampled_nodes",
    "num_sampled_edges",
    "num_dst",
    "num_seeds",
    "dst_degree",
    "seed_index",
    "row",
    "node",
    "edge",
    "seed",
    "seed_time",
)

#: Columns of a row: its key, and the arrays of its neighborhood as bytes.
SCHEMA = pa.schema([*_KEYS, *((name, pa.binary()) for name in _ARRAYS)])


@dataclass(frozen=True)
class RowLayout:
    """Layout of a neighborhood's arrays in the columns of a row.

    A column concatenates the arrays of all types as little-endian integers of four bytes if they
    fit, else of eight. Destinations of edges follow from the number of edges of each destination.
    Columns are bytes, because Parquet lists take three times as long to read.
    """

    node_types: tuple[str, ...]
    edge_types: tuple[EdgeType, ...]

    @classmethod
    def of_sampler(cls, sampler: NeighborSampler) -> RowLayout:
        """The layout of a sampler's output, with its order of types, in which models sum."""
        return cls(tuple(sampler.graph.node_types), tuple(sampler.fanouts))

    def encode(self, subgraph: SampledSubgraph) -> dict[str, bytes | None]:
        index = [subgraph.seed_index.get(t) for t in self.node_types]
        of_nodes, of_edges = _in_order(self.node_types), _in_order(self.edge_types)
        seed, times = subgraph.seed, subgraph.seed_time
        return {
            "num_sampled_nodes": _bytes(of_nodes(subgraph.num_sampled_nodes)),
            "num_sampled_edges": _bytes(of_edges(subgraph.num_sampled_edges)),
            "num_dst": _bytes([[len(ptr) - 1] for ptr in of_edges(subgraph.dst_ptr)]),
            "num_seeds": _bytes([[_NONE if of is None else len(of)] for of in index]),
            "dst_degree": _bytes([np.diff(ptr) for ptr in of_edges(subgraph.dst_ptr)]),
            "seed_index": _bytes([of for of in index if of is not None]),
            "row": _bytes([edges[0] for edges in of_edges(subgraph.edge_index)]),
            "node": _bytes(of_nodes(subgraph.node)),
            "edge": _bytes(of_edges(subgraph.edge)),
            "seed": None if seed is None else _bytes(of_nodes(seed)),
            "seed_time": None if times is None else np.concatenate(of_nodes(times)).tobytes(),
        }

    def decode(
        self, row: Mapping[str, Any], request: SampleRequest, temporal: Temporal | None
    ) -> SampledSubgraph:
        """The neighborhood of a row of bytes by column. Raises a ValueError for other columns."""
        nodes, edges = self.node_types, self.edge_types
        hops_of_nodes = _counts(row["num_sampled_nodes"]).reshape(len(nodes), -1)
        hops_of_edges = _counts(row["num_sampled_edges"]).reshape(len(edges), -1)
        num_nodes, num_edges = hops_of_nodes.sum(1), hops_of_edges.sum(1)
        num_seeds = _counts(row["num_seeds"])
        seeded = [t for t, count in zip(nodes, num_seeds, strict=True) if count != _NONE]
        degrees = _cut(edges, row["dst_degree"], _counts(row["num_dst"]))
        dst_ptr = {t: _pointers(of_type) for t, of_type in degrees.items()}
        sources = _cut(edges, row["row"], num_edges)
        seed_time = None
        if row["seed_time"] is not None:
            assert request.times is not None
            dtype = next(iter(request.times.values())).dtype
            seed_time = _cut(nodes, row["seed_time"], num_nodes, dtype)
        return SampledSubgraph(
            node=_cut(nodes, row["node"], num_nodes),
            edge_index={t: _edge_index(sources[t], dst_ptr[t]) for t in edges},
            edge=_cut(edges, row["edge"], num_edges),
            dst_ptr=dst_ptr,
            num_sampled_nodes=dict(zip(nodes, hops_of_nodes.tolist(), strict=True)),
            num_sampled_edges=dict(zip(edges, hops_of_edges.tolist(), strict=True)),
            seed_index=_cut(seeded, row["seed_index"], num_seeds[num_seeds != _NONE]),
            seed=None if row["seed"] is None else _cut(nodes, row["seed"], num_nodes),
            seed_time=seed_time,
            temporal=temporal,
        )


def _in_order(types: Sequence[Key]) -> Callable[[Mapping[Key, Any]], list[Any]]:
    return lambda of: [of[t] for t in types]


def _bytes(parts: Sequence[Any]) -> bytes:
    values = np.concatenate([np.empty(0, np.int64), *parts])
    fits = len(values) == 0 or max(values.max(), -values.min()) <= np.iinfo(_INT32).max
    return values.astype(_INT32 if fits else _INT64).tobytes()


def _counts(content: bytes) -> np.ndarray:
    return np.frombuffer(content, _INT32)


def _cut(
    types: Sequence[Key], content: bytes, sizes: np.ndarray, dtype: np.dtype | None = None
) -> dict[Key, np.ndarray]:
    """Copies of consecutive slices, by type. `dtype` of None infers the width of integers. Raises a
    ValueError for a wrong number of values.
    """
    total = int(sizes.sum())
    stored = dtype or (_INT32 if len(content) == total * _INT32.itemsize else _INT64)
    if len(content) != total * stored.itemsize:
        raise ValueError(f"{len(content)} bytes hold {total} values")
    values = np.frombuffer(content, stored)
    parts = np.split(values, np.cumsum(sizes)[:-1]) if len(sizes) else []
    wanted = dtype or np.dtype(np.int64)
    return {t: part.astype(wanted) for t, part in zip(types, parts, strict=True)}


def _pointers(degrees: np.ndarray) -> np.ndarray:
    pointers = np.zeros(len(degrees) + 1, np.int64)
    np.cumsum(degrees, out=pointers[1:])
    return pointers


def _edge_index(sources: np.ndarray, dst_ptr: np.ndarray) -> np.ndarray:
    if dst_ptr[-1] != len(sources):
        raise ValueError(f"{len(sources)} sources of {dst_ptr[-1]} edges")
    edge_index = np.empty((2, len(sources)), np.int64)
    edge_index[0] = sources
    fill_columns(dst_ptr, edge_index[1])
    return edge_index
