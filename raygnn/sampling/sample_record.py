"""Stored neighborhoods: `samples.json` with their settings, and the layout of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from raygnn.data.checksums import Checksum, Seal, find_damage
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import exists, join, redact
from raygnn.errors import DataError
from raygnn.sampling.growing_subgraph import fill_columns
from raygnn.sampling.neighbor_sampler import NeighborSampler
from raygnn.sampling.protocols import SampledSubgraph, SampleRequest
from raygnn.sampling.rng import RNG_VERSION
from raygnn.sampling.temporal import Temporal

RECORD_NAME, PLAN_NAME = "samples.json", "plan.json"
FORMAT_VERSION = 1
_AGAIN = "run raygnn presample with this config and another --out, and set data.samples to it."


@dataclass(frozen=True)
class SampleFile:
    """A file of consecutive micro-batches of an epoch, each a row group of one row."""

    split: str
    epoch: int
    first: int
    last: int

    @property
    def num_rows(self) -> int:
        return self.last - self.first

    @property
    def name(self) -> str:
        return f"{self.split}/epoch-{self.epoch:05d}/{self.first:09d}.parquet"


@dataclass(frozen=True)
class SplitPlan:
    """The stored samples of a split.

    Attributes:
        num_epochs: 1 for evaluation splits, whose batches never change.
        rows_per_file: micro-batches per file; the last one of an epoch may have fewer.
        settings: settings that determine neighborhoods besides requests, by name.
    """

    num_batches: int
    num_epochs: int
    rows_per_file: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class SamplePlan:
    """The planned content of a set of stored neighborhoods.

    Attributes:
        config: config keys that determine requests, for messages.
    """

    layout: RowLayout
    splits: Mapping[str, SplitPlan]
    config: Mapping[str, Any]
    rng_version: int = RNG_VERSION

    def files(self) -> Iterator[SampleFile]:
        for name, split in self.splits.items():
            for epoch in range(split.num_epochs):
                for first in range(0, split.num_batches, split.rows_per_file):
                    last = min(first + split.rows_per_file, split.num_batches)
                    yield SampleFile(name, epoch, first, last)

    def file_of(self, split: str, epoch: int, index: int) -> SampleFile:
        plan = self.splits[split]
        first = index - index % plan.rows_per_file
        return SampleFile(split, epoch, first, min(first + plan.rows_per_file, plan.num_batches))


@dataclass(frozen=True)
class SampleRecord(SamplePlan):
    """A complete set.

    Attributes:
        file_sizes: bytes of every file by name.
        checksums: of these files.
    """

    file_sizes: Mapping[str, int] = field(kw_only=True, repr=False)
    checksums: Mapping[str, Checksum] = field(kw_only=True, repr=False)

    def save(self, uri: str) -> None:
        """Writes samples.json, which completes the set."""
        _SEAL.write(uri, RECORD_NAME, self)

    @classmethod
    def load(cls, uri: str) -> SampleRecord:
        """Reads samples.json. Raises a DataError if it is missing, damaged or too new."""
        if not exists(join(uri, RECORD_NAME)):
            begun = exists(join(uri, PLAN_NAME))
            what = "was interrupted" if begun else f"has no {RECORD_NAME}"
            remedy = "Run the same raygnn presample again, which resumes it."
            raise DataError(
                f"data.samples={redact(uri)!r} is invalid: the set of neighborhoods {what}. "
                + (remedy if begun else "Set a folder that raygnn presample has finished."),
                id="samples-interrupted" if begun else "samples-missing",
            )
        return _SEAL.read(uri, RECORD_NAME, cls)

    def check_files(self, uri: str) -> None:
        """Raises a DataError if a file is missing, or has a wrong size or, on a disk, end."""
        if damage := find_damage(uri, self.file_sizes, self.checksums):
            raise DataError(
                f"data.samples={redact(uri)!r} is invalid: {damage}. Remove the file, and run the "
                "same raygnn presample, which writes it again. [samples-damaged]"
            )


def save_plan(uri: str, plan: SamplePlan) -> None:
    _SEAL.write(uri, PLAN_NAME, plan)


def load_plan(uri: str) -> SamplePlan | None:
    """The plan of a started or complete set, if any. Raises a DataError if it is damaged."""
    return _SEAL.read(uri, PLAN_NAME, SamplePlan) if exists(join(uri, PLAN_NAME)) else None


def check_same_settings(uri: str, stored: SamplePlan, wanted: SamplePlan) -> None:
    """Raises a DataError if a split is missing in a set, or was sampled with other settings."""
    start = f"data.samples={redact(uri)!r} is invalid: "
    if stored.rng_version != wanted.rng_version:
        raise DataError(
            f"{start}its draws are of rng_version {stored.rng_version}, not of "
            f"{wanted.rng_version}. To sample again, {_AGAIN} [samples-version]"
        )
    for name, split in wanted.splits.items():
        have = stored.splits.get(name)
        if have is None:
            raise DataError(
                f"{start}it has no neighborhoods of split {name!r}, only of "
                f"{sorted(stored.splits)}. To sample again, {_AGAIN} [samples-split]"
            )
        for key, value in split.settings.items():
            if have.settings.get(key) == value:
                continue
            if key == "graph":
                why = _changes(stored, wanted) or "the tables of data.uri differ"
                raise DataError(
                    f"{start}in split {name!r} it was sampled from another graph: {why}. Set these "
                    f"back, or {_AGAIN} [samples-graph]"
                )
            in_config = _key_of(key, name)
            raise DataError(
                f"{start}split {name!r} has {in_config}={have.settings.get(key)!r}, and the config "
                f"{value!r}. Set it back, or {_AGAIN} [samples-settings]"
            )
        if have.num_batches != split.num_batches:
            raise other_requests(uri, name, stored, wanted)


def other_requests(uri: str, split: str, stored: SamplePlan, wanted: SamplePlan) -> DataError:
    """The error of a set whose batches have other seeds, negatives or excluded edges."""
    why = _changes(stored, wanted) or "task, loader or data.splits differ"
    return DataError(
        f"data.samples={redact(uri)!r} is invalid: batches of split {split!r} have other seeds, "
        f"negatives or excluded edges: {why}. Set these back, or {_AGAIN} [samples-requests]"
    )


def _changes(stored: SamplePlan, wanted: SamplePlan) -> str:
    return "; ".join(
        f"{key} was {stored.config.get(key)!r} and is {value!r}"
        for key, value in wanted.config.items()
        if stored.config.get(key) != value
    )


def _key_of(setting: str, split: str) -> str:
    if setting == "batch_size":
        return "loader.batch_size" if split == "train" else "loader.eval_batch_size"
    return setting


_SEAL = Seal(
    "raygnn/samples",
    FORMAT_VERSION,
    damaged="samples-record-damaged",
    outdated="samples-version",
    remedy="Remove the folder, and run raygnn presample again",
)


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
