"""A memory-mapped bundle as graph and feature store, and requests that several stores share."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import ml_dtypes
import numpy as np
import torch
from numba import njit
from torch import Tensor

from raygnn.data.arrays import ask_for_rows
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import ColumnInfo
from raygnn.data.edge_types import EdgeType, type_name
from raygnn.data.extended_bundle import Addition
from raygnn.data.standardization import Affine, ColumnScale, Standardization
from raygnn.device_memory import unused_bytes
from raygnn.errors import DataError
from raygnn.sampling.gather import (
    copy_sparse_rows,
    gather_float_rows,
    gather_rows,
    gather_sparse_rows,
    is_half,
)
from raygnn.sampling.local_pick import LocalPicker
from raygnn.sampling.protocols import NO_COLUMNS, DeviceColumns, EdgesByNode, PickRequest, Picks
from raygnn.sampling.scratch import Scratch
from raygnn.sampling.sparse_features import SparseFeatures
from raygnn.sampling.temporal import Horizon
from raygnn.sampling.tensor_record import DeviceColumn

#: Stored types that a device decodes to the same bits as the host.
_DEVICE_DTYPES = ("float32", "float16", "bfloat16", "int8")


class Share(NamedTuple):
    """The request to one part.

    Attributes:
        positions: int64, ascending, positions of its ids among all.
    """

    part: int
    positions: np.ndarray


def shares_of(first: np.ndarray, ids: np.ndarray) -> Iterator[Share]:
    """Shares of the parts with ids; an empty share of part 0 without ids.

    Args:
        first: int64 [num_parts + 1], the first id of each part.
        ids: int64 [n].
    """
    if not len(ids):
        yield Share(0, np.empty(0, np.int64))
        return
    part_of = np.searchsorted(first, ids, side="right") - 1
    # A type of few bytes, so that NumPy counts instead of comparing.
    positions = np.argsort(part_of.astype(np.min_scalar_type(len(first))), kind="stable")
    starts = np.searchsorted(part_of[positions], np.arange(len(first)))
    for part in range(len(first) - 1):
        if starts[part] < starts[part + 1]:
            yield Share(part, positions[starts[part] : starts[part + 1]])


def restricted(request: PickRequest, positions: np.ndarray) -> PickRequest:
    """The request restricted to some nodes."""
    keys, salts = request.exclude_keys, request.salts
    return replace(
        request,
        nodes=request.nodes[positions],
        exclude_keys=None if keys is None else keys[positions],
        horizon=restricted_horizon(request.horizon, positions),
        salts=None if salts is None else salts[positions],
    )


def restricted_horizon(horizon: Horizon | None, positions: np.ndarray) -> Horizon | None:
    return None if horizon is None else horizon._replace(latest=horizon.latest[positions])


def merged_picks(shares: Sequence[Share], parts: Sequence[Picks], num_nodes: int) -> Picks:
    """Picks of several parts in the order of the nodes."""
    offsets = np.zeros(num_nodes + 1, np.int64)
    for share, picks in zip(shares, parts, strict=True):
        offsets[1:][share.positions] = np.diff(picks.offsets)
    np.cumsum(offsets, out=offsets)
    neighbors = np.empty(offsets[-1], parts[0].neighbors.dtype)
    e_id = np.empty(offsets[-1], np.int64)
    for share, picks in zip(shares, parts, strict=True):
        _place(picks.neighbors, picks.offsets, share.positions, offsets, neighbors)
        _place(picks.e_id, picks.offsets, share.positions, offsets, e_id)
    return Picks(neighbors, e_id, offsets)


@njit(nogil=True, cache=True)
def _place(values, own_offsets, positions, offsets, out):  # type: ignore[no-untyped-def]
    for i in range(len(positions)):
        start = offsets[positions[i]]
        for j in range(own_offsets[i], own_offsets[i + 1]):
            out[start + j - own_offsets[i]] = values[j]


# Above this share of nonzero elements, dense rows are faster to make and multiply.
_MAX_SPARSE_SHARE = 1 / 8


class StoreOfBundle(ABC):
    """The types, counts and columns of a graph, which all graph stores read of its bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._num_out_edges: dict[EdgeType, np.ndarray] = {}
        self._lock = threading.RLock()

    @property
    def node_types(self) -> list[str]:
        """Node types, in the order of the graph."""
        return list(self._bundle.node_types)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Edge types, in the order of the graph."""
        return list(self._bundle.edge_types)

    def num_nodes(self, node_type: str) -> int:
        return self._bundle.num_nodes(node_type)

    def num_edges(self, edge_type: EdgeType) -> int:
        return self._bundle.num_edges(edge_type)

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]:
        return self._bundle.columns(type_)

    def degrees(
        self, edge_type: EdgeType, nodes: np.ndarray, horizon: Horizon | None = None
    ) -> np.ndarray:
        return self._degrees(edge_type, "in", nodes, horizon)

    def neighbor_degrees(
        self, edge_type: EdgeType, nodes: np.ndarray, horizon: Horizon | None = None
    ) -> np.ndarray:
        """The first call counts the sources of an edge type without a reverse.

        This reads all its edges. With a horizon, the edges are sorted by source once.
        """
        if horizon is not None:
            return self._degrees(edge_type, "out", nodes, horizon)
        by_neighbor = self._bundle.reverse_of(edge_type)
        if by_neighbor is not None:
            return self._degrees(by_neighbor, "in", nodes, None)
        return self._out_degrees(edge_type, nodes)

    @abstractmethod
    def _degrees(
        self, edge_type: EdgeType, direction: str, nodes: np.ndarray, horizon: Horizon | None
    ) -> np.ndarray: ...

    @abstractmethod
    def _count_sources(self, edge_type: EdgeType) -> np.ndarray:
        """int64 [num_source_nodes], edges of a type by source."""

    def _out_degrees(self, edge_type: EdgeType, nodes: np.ndarray) -> np.ndarray:
        with self._lock:
            if edge_type not in self._num_out_edges:
                self._num_out_edges[edge_type] = self._count_sources(edge_type)
        degrees = np.empty(len(nodes), np.int64)
        gather_rows(self._num_out_edges[edge_type], nodes, degrees)
        return degrees


class LocalGraphStore(StoreOfBundle):
    """The graph of a bundle on this machine; a `GraphStore`.

    With a weight, the first `pick` of an edge type reads the weights of all its edges.
    """

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self._pickers: dict[tuple[EdgeType, str], LocalPicker] = {}

    def __reduce__(self) -> tuple[type[LocalGraphStore], tuple[Bundle]]:
        return (LocalGraphStore, (self._bundle,))

    @property
    def fingerprint(self) -> str:
        return self._bundle.fingerprint

    def pick(
        self, edge_type: EdgeType, request: PickRequest, scratch: Scratch | None = None
    ) -> Picks:
        return self.picker(edge_type).pick(request, scratch or Scratch())

    def adjacency(self, edge_type: EdgeType) -> EdgesByNode:
        edges = self.picker(edge_type).adjacency
        return EdgesByNode(edges.indptr, edges.indices, edges.e_id)

    def picker(self, edge_type: EdgeType, direction: str = "in") -> LocalPicker:
        """The picker of an edge type by destination, or by source (`out`). Raises a DataError."""
        key = (edge_type, direction)
        if key not in self._pickers:
            with self._lock:
                if key not in self._pickers:
                    self._pickers[key] = LocalPicker(self._bundle, *key)
        return self._pickers[key]

    def _degrees(
        self, edge_type: EdgeType, direction: str, nodes: np.ndarray, horizon: Horizon | None
    ) -> np.ndarray:
        return self.picker(edge_type, direction).degrees(nodes, horizon)

    def _count_sources(self, edge_type: EdgeType) -> np.ndarray:
        return self.picker(edge_type).count_neighbors(self.num_nodes(edge_type[0]))


#: Columns in arrays on this machine.
StoredColumns = Bundle | Addition


class LocalFeatureStore:
    """The columns of a bundle on this machine; a `FeatureStore`.

    float16 and bfloat16 are storage formats; their rows are returned as float32.

    Args:
        standardization: columns returned standardized, as float32.
        keeps_sparse: returns sparse node features as sparse, for models that accept them. Columns
            more than an eighth full are returned dense.
        device_columns: columns whose rows a device computes.
    Raises:
        DataError: the rows of a standardized column have another width.
    """

    def __init__(
        self,
        bundle: StoredColumns,
        standardization: Standardization = MappingProxyType({}),
        *,
        keeps_sparse: bool = False,
        device_columns: DeviceColumns = NO_COLUMNS,
    ) -> None:
        self._bundle = bundle
        self._keeps_sparse = keeps_sparse
        self.device_columns = device_columns
        self._standardization = standardization
        self._affine = find_affines(bundle, standardization)

    def __reduce__(self) -> tuple[Callable[[], LocalFeatureStore], tuple[()]]:
        scales = dict(self._standardization)
        build = partial(LocalFeatureStore, self._bundle, scales, keeps_sparse=self._keeps_sparse)
        return build, ()

    def columns(self, type_: str | EdgeType) -> Mapping[str, ColumnInfo]:
        return self._bundle.columns(type_)

    def row_layout(self, type_: str | EdgeType, column: str) -> tuple[tuple[int, ...], np.dtype]:
        rows = self._stored(type_, column)
        if isinstance(rows, SparseColumn):
            return (rows.dim,), np.dtype(np.float32)
        shape: tuple[int, ...] = rows.shape[1:]
        if not shape and isinstance(type_, str) and self.columns(type_)[column].role == "feature":
            shape = (1,)  # x is [num_nodes, width] for any model
        is_float32 = is_half(rows.dtype) or (type_, column) in self._affine
        return shape, np.dtype(np.float32) if is_float32 else rows.dtype

    def gather(
        self, type_: str | EdgeType, column: str, ids: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        rows = self._stored(type_, column)
        shape, dtype = self.row_layout(type_, column)
        if out is None:
            out = np.empty((len(ids), *shape), dtype)
        # The kernels do not look where they write.
        assert out.shape == (len(ids), *shape)
        assert out.dtype == dtype or (isinstance(rows, np.ndarray) and out.dtype == rows.dtype)
        assert out.flags.c_contiguous
        affine = self._affine.get((type_, column)) if out.dtype == dtype else None
        self._fill(type_, column, ids, out, affine)
        return out

    def gather_sparse(
        self, type_: str | EdgeType, column: str, ids: np.ndarray
    ) -> SparseFeatures | None:
        if not self._keeps_sparse or (type_, column) in self._affine:
            return None
        rows = self._stored(type_, column)
        if not isinstance(rows, SparseColumn) or not self._stays_sparse(type_, column, rows):
            return None
        rows, ids = self._sparse_rows(type_, column, ids)
        indptr, indices, values = copy_sparse_rows(rows.indptr, rows.indices, rows.values, ids)
        return SparseFeatures(
            indptr=torch.from_numpy(indptr),
            indices=torch.from_numpy(indices),
            values=None if values is None else torch.from_numpy(values),
            width=rows.dim,
        )

    def _stored(self, type_: str | EdgeType, column: str) -> np.ndarray | SparseColumn:
        """A column as stored; other stores return some of its rows."""
        return self._bundle.column(type_, column)

    def _fill(
        self,
        type_: str | EdgeType,
        column: str,
        ids: np.ndarray,
        out: np.ndarray,
        affine: Affine | None,
    ) -> None:
        rows = self._bundle.column(type_, column)
        if self._bundle.is_larger_than_memory and isinstance(rows, np.ndarray):
            ask_for_rows(rows, ids)
        read_rows(rows, ids, out, affine)

    def _stays_sparse(self, type_: str | EdgeType, column: str, rows: SparseColumn) -> bool:
        return is_sparse_enough(len(rows.indices), len(rows.indptr) - 1, rows.dim)

    def _sparse_rows(
        self, type_: str | EdgeType, column: str, ids: np.ndarray
    ) -> tuple[SparseColumn, np.ndarray]:
        """Stored rows, and the positions of the wanted ones among them."""
        rows = self._bundle.column(type_, column)
        assert isinstance(rows, SparseColumn)
        return rows, ids


def read_rows(
    rows: np.ndarray | SparseColumn, ids: np.ndarray, out: np.ndarray, affine: Affine | None
) -> None:
    """Fills `out` with rows of a stored column.

    Args:
        ids: int64, rows of `rows`.
        out: C-contiguous, with the layout of `row_layout`, or of the stored dtype.
        affine: standardizes the rows; None leaves them.
    """
    if isinstance(rows, SparseColumn):
        gather_sparse_rows(rows.indptr, rows.indices, rows.values, ids, out)
        if affine is not None:  # a model of dense rows, on a graph that holds them sparse
            out -= affine.shift
            out *= affine.factor
            out += affine.offset
    elif affine is not None or out.dtype != rows.dtype:
        gather_float_rows(rows, ids, out, affine)
    else:
        gather_rows(rows, ids, out)


def is_sparse_enough(num_values: int, num_rows: int, width: int) -> bool:
    """Whether rows of a sparse column stay sparse, for a model that accepts them."""
    return num_values <= _MAX_SPARSE_SHARE * num_rows * width


def find_affines(
    bundle: StoredColumns, standardization: Standardization
) -> dict[tuple[str | EdgeType, str], Affine]:
    """Affine maps from stored rows to model inputs, by type and column.

    Raises a DataError if the rows of a column have another width.
    """
    return {
        (type_, column): _checked_affine(bundle, type_, column, scale)
        for type_ in bundle.types
        for column, scale in standardization.get(type_name(type_), {}).items()
    }


def find_device_columns(
    bundle: Bundle,
    standardization: Standardization,
    names: Collection[str],
    device: torch.device,
    *,
    holds: bool | Literal["auto"],
) -> dict[tuple[str | EdgeType, str], DeviceColumn]:
    """The columns of these names whose rows a device computes, by type and name.

    Args:
        holds: whether the device holds the columns, and times of any type; `auto` does if they
            take a third of its free memory at most. If it does not, only rows narrower than
            float32 travel as stored.
    """
    affines = find_affines(bundle, standardization)
    columns = {
        (type_, name): info
        for type_ in bundle.types
        for name, info in bundle.columns(type_).items()
        if name in names
        and info.role != "label"
        and not info.sparse
        and (info.role == "time" or info.dtype in _DEVICE_DTYPES)
    }
    if holds == "auto":
        num_bytes = sum(bundle.dense(*key).nbytes for key in columns)
        holds = 3 * num_bytes <= unused_bytes(device)
    device_columns = {}
    for (type_, name), info in columns.items():
        if not holds and (info.role == "time" or info.dtype == "float32"):
            continue
        shape = info.shape or ((1,) if isinstance(type_, str) and info.role == "feature" else ())
        affine, held = affines.get((type_, name)), None
        if holds:
            rows = bundle.dense(type_, name)
            held = as_tensor(rows).view(len(rows), *shape).to(device)
        parts = (torch.from_numpy(part).view(shape).to(device) for part in affine or ())
        device_columns[type_, name] = DeviceColumn(held, None if affine is None else tuple(parts))
    return device_columns


def as_tensor(rows: np.ndarray) -> Tensor:
    """A tensor of an array, on the same memory; also of bfloat16, which torch does not take."""
    if rows.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)


def _checked_affine(
    bundle: StoredColumns, type_: str | EdgeType, column: str, scale: ColumnScale
) -> Affine:
    width = math.prod(bundle.columns(type_)[column].shape)
    if width != len(scale.mean):
        raise DataError(
            f"feature {column!r} of {type_name(type_)!r} is invalid: its rows have {width} "
            f"elements, and in training {len(scale.mean)}. Write it as there. [model-feature-width]"
        )
    return scale.affine()
