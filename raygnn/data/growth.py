"""Rows that are added to a graph batch after batch, in arrays that only grow.

An append costs what its rows cost. A view has the rows until a batch: it shares the arrays, and
later batches do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.edge_chains import EdgeChains, GrowingArray
from raygnn.data.edge_types import EdgeType
from raygnn.data.extended_bundle import AddedEdges, Addition


class _GrowingSparse:
    def __init__(self, rows: SparseColumn) -> None:
        self._indptr, self._indices = GrowingArray(rows.indptr), GrowingArray(rows.indices)
        self._values = None if rows.values is None else GrowingArray(rows.values)
        self._dim = rows.dim

    def append(self, rows: SparseColumn) -> None:
        first = self._indptr.view()[-1]
        self._indptr.append(first + rows.indptr[1:])
        self._indices.append(rows.indices)
        if rows.values is not None:
            if self._values is None:  # no row had values so far
                self._values = GrowingArray(np.ones(int(first), np.float32))
            self._values.append(rows.values)

    def view(self) -> SparseColumn:
        values = None if self._values is None else self._values.view()
        return SparseColumn(self._indptr.view(), self._indices.view(), values, self._dim)


class GrowingIds:
    """Original ids of new nodes of a type, and the number of each.

    Attributes:
        numbers: by id; an earlier view of `ids` shares it.
    """

    def __init__(self, ids: pa.Array) -> None:
        self.numbers: dict[Any, int] = {}
        self._is_text = pa.types.is_large_string(ids.type)
        # Integers, or the bounds of texts in `_letters`.
        self._values = GrowingArray(np.zeros(int(self._is_text), np.int64))
        self._letters = GrowingArray(np.zeros(0, np.uint8))
        self.append(ids)

    @property
    def ids(self) -> pa.Array:
        """In the order of the nodes. Copies nothing."""
        values = pa.py_buffer(self._values.view())
        if not self._is_text:
            return pa.Array.from_buffers(pa.int64(), len(self), [None, values])
        return pa.LargeStringArray.from_buffers(
            len(self), values, pa.py_buffer(self._letters.view())
        )

    def __len__(self) -> int:
        return len(self._values.view()) - self._is_text

    def append(self, ids: pa.Array) -> None:
        """Appends int64 or large_string ids."""
        self.numbers.update((id, number) for number, id in enumerate(ids.to_pylist(), len(self)))
        if not self._is_text:
            self._values.append(ids.to_numpy())
        elif len(ids):
            _, bounds, letters = ids.buffers()
            own = np.frombuffer(bounds, np.int64)[ids.offset : ids.offset + len(ids) + 1]
            self._values.append(own[1:] - own[0] + len(self._letters.view()))
            self._letters.append(np.frombuffer(letters or b"", np.uint8)[own[0] : own[-1]])


class Growth:
    """The nodes and edges that were added to a graph.

    Args:
        start: the first ones, perhaps none.
    """

    def __init__(self, graph: Bundle, start: Addition) -> None:
        self._infos = start.infos
        self._ids = {name: GrowingIds(ids) for name, ids in start.ids.items()}
        self._edges = {
            edge_type: tuple(GrowingArray(end) for end in ends)
            for edge_type, ends in start.edges.items()
        }
        self._arrays = _growing(start)
        self._chains = {
            (edge_type, direction): EdgeChains.of(
                graph.num_nodes(node_type), start.num_new[node_type], nodes
            )
            for edge_type, ends in start.edges.items()
            for direction, node_type, nodes in _ends(edge_type, ends)
        }

    def append(self, addition: Addition) -> None:
        """Appends rows that are numbered after those of `view`. For one thread at a time."""
        for edge_type, added in addition.edges.items():
            for growing, end in zip(self._edges[edge_type], added, strict=True):
                growing.append(end)
            for direction, node_type, nodes in _ends(edge_type, added):
                self._chains[edge_type, direction].append(addition.num_new[node_type], nodes)
        _append(self._arrays, addition)
        for name, ids in addition.ids.items():
            self._ids[name].append(ids)

    def view(self) -> Addition:
        """All rows so far. Later appends do not change it."""
        return Addition(
            {name: len(growing) for name, growing in self._ids.items()},
            {name: growing.ids for name, growing in self._ids.items()},
            {t: AddedEdges(*(end.view() for end in ends)) for t, ends in self._edges.items()},
            _views(self._arrays),
            self._infos,
            numbers={name: growing.numbers for name, growing in self._ids.items()},
            chains=self._chains,
        )


def joined(parts: Sequence[Addition]) -> Addition:
    """The rows of several additions, each numbered after those before it."""
    first, *others = parts
    arrays = _growing(first)
    for part in others:
        _append(arrays, part)
    return Addition(
        {name: sum(part.num_new[name] for part in parts) for name in first.num_new},
        {name: pa.concat_arrays([part.ids[name] for part in parts]) for name in first.ids},
        {
            t: AddedEdges(*map(np.concatenate, zip(*(p.edges[t] for p in parts), strict=True)))
            for t in first.edges
        },
        _views(arrays),
        first.infos,
    )


_GrowingColumns = dict[str | EdgeType, dict[str, "GrowingArray | _GrowingSparse"]]


def _growing(start: Addition) -> _GrowingColumns:
    return {
        type_: {
            name: _GrowingSparse(rows) if isinstance(rows, SparseColumn) else GrowingArray(rows)
            for name, rows in columns.items()
        }
        for type_, columns in start.arrays.items()
    }


def _append(arrays: _GrowingColumns, addition: Addition) -> None:
    for type_, columns in addition.arrays.items():
        for name, rows in columns.items():
            arrays[type_][name].append(rows)  # type: ignore[arg-type]


def _views(arrays: _GrowingColumns) -> dict[str | EdgeType, dict[str, np.ndarray | SparseColumn]]:
    return {
        type_: {name: rows.view() for name, rows in columns.items()}
        for type_, columns in arrays.items()
    }


def _ends(edge_type: EdgeType, edges: AddedEdges) -> Iterator[tuple[str, str, np.ndarray]]:
    """Direction, node type and nodes of each end."""
    yield "in", edge_type[2], edges.targets
    yield "out", edge_type[0], edges.sources
