"""Small graphs as arrays, for tests: what they should be, and a bundle of them."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.bundle_record import (
    INDICES,
    INDPTR,
    BundleRecord,
    ColumnInfo,
    EdgeRecord,
    NodeRecord,
    column_path,
)
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.id_map import IdIndex

#: In memory, where the system has such a folder: a disk would sync each of many small files.
_FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
NODE, EDGE = "node", ("node", "to", "node")


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked process also finalizes the objects of its parent
        shutil.rmtree(path)


@dataclass
class SmallGraph:
    """Edges by type as (sources, targets), and their times; columns by type and name.

    Columns of edges are by position in the CSC.
    """

    nodes: dict[str, int]
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]]
    index_dtype: str = "int32"
    stored: dict[object, dict[str, np.ndarray | SparseColumn]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=lambda: {"y": "label"})
    reverses: dict[EdgeType, EdgeType] = field(default_factory=dict)
    times: dict[EdgeType, np.ndarray] = field(default_factory=dict)

    @cached_property
    def bundle(self) -> Bundle:
        """A bundle of the graph as it is at the first use; its files last as long as the object."""
        path = Path(tempfile.mkdtemp(prefix="small-graph-", dir=_FOLDER))
        nodes = {
            name: NodeRecord(
                size,
                IdIndex("range", 0, size),
                self._write_columns(path / f"nodes/{name}", name),
                False,
            )
            for name, size in self.nodes.items()
        }
        edges = tuple(self._write_edges(path, edge_type) for edge_type in self.edges)
        BundleRecord("small", nodes, edges).save(path)
        bundle = Bundle.open(path)
        weakref.finalize(bundle, _remove, path, os.getpid())
        return bundle

    def _write_edges(self, path: Path, edge_type: EdgeType) -> EdgeRecord:
        folder = path / "edges" / edge_type_name(edge_type)
        source, target = self.edges[edge_type]
        times = self.times.get(edge_type)
        order = np.lexsort((source, np.zeros(len(source)) if times is None else times, target))
        indptr = np.zeros(self.nodes[edge_type[2]] + 1, np.int64)
        np.cumsum(np.bincount(target, minlength=len(indptr) - 1), out=indptr[1:])
        _save(folder / INDPTR, indptr)
        _save(folder / INDICES, source[order].astype(self.index_dtype))
        by_position = {} if times is None else {"time": times[order]}
        columns = self._write_columns(folder, edge_type, by_position)
        reverse = self.reverses.get(edge_type)
        return EdgeRecord(edge_type, len(source), True, columns, reverse)

    def _write_columns(
        self, folder: Path, type_: object, more: Mapping[str, np.ndarray] | None = None
    ) -> tuple[ColumnInfo, ...]:
        infos = []
        for name, column in {**self.stored.get(type_, {}), **(more or {})}.items():
            role = "time" if more and name in more else self.roles.get(name, "feature")
            if isinstance(column, SparseColumn):
                _save(column_path(folder, name, "indptr"), column.indptr)
                _save(column_path(folder, name, "indices"), column.indices)
                if column.values is not None:
                    _save(column_path(folder, name, "values"), column.values)
                infos.append(ColumnInfo(name, role, "float32", (column.dim,), True))
            else:
                _save(column_path(folder, name), column)
                infos.append(ColumnInfo(name, role, str(column.dtype), column.shape[1:]))
        return tuple(infos)


def _save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def random_graph(
    num_nodes: int = 200, num_edges: int = 2000, seed: int = 0, index_dtype: str = "int32"
) -> SmallGraph:
    """One node and edge type; half of the edges lead to a tenth of the nodes."""
    rng = np.random.default_rng(seed)
    source = rng.integers(0, num_nodes, num_edges)
    target = rng.integers(0, num_nodes, num_edges)
    hubs = rng.random(num_edges) < 0.5
    target[hubs] %= max(num_nodes // 10, 1)
    x = np.arange(num_nodes, dtype=np.float32)[:, None].repeat(3, 1)
    return SmallGraph(
        {NODE: num_nodes},
        {EDGE: (source, target)},
        index_dtype,
        {
            NODE: {"x": x, "y": np.arange(num_nodes) % 7},
            EDGE: {"weight": np.arange(num_edges, dtype=np.float32)},
        },
    )
