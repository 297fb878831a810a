"""Edges with labels: their splits and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ROW
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.links.folder import labelled_positions, link_folder
from raygnn.data.links.split import LinkSplit, find_label_edges, label_table, message_table
from raygnn.data.splits import SPLIT_NAMES, Splits, is_wanted
from raygnn.errors import DataError


@dataclass(frozen=True)
class SeedEdges:
    """Edges of one type, identified by position: message edges by `e_id`, label edges in their
    order.

    Attributes:
        indptr: int64 [num_rows + 1], start of each row's edges: a row is a target of message edges,
            a source of label edges. Null for pairs that are not in the graph.
        others: [num_edges], dense ids of the other end.
        rows: int64 [num_edges], dense ids of the rows, if `indptr` is null.
        times: int64 or float64 [num_edges], or null.
        table_rows: int64 [num_edges], row of the table that each edge comes from, counted from 0;
            -1 - row for the reverse copy of an undirected edge. Null for message edges without
            labels, and for pairs.
    """

    edge_type: EdgeType
    indptr: np.ndarray | None
    others: np.ndarray
    by_target: bool = False
    rows: np.ndarray | None = None
    times: np.ndarray | None = None
    table_rows: np.ndarray | None = None

    @classmethod
    def of_bundle(cls, bundle: Bundle, edge_type: EdgeType, *, label_edges: bool) -> SeedEdges:
        """All edges of a type, or its positive label edges. Raises a DataError without any."""
        link = LinkSplit(edge_type, labels=label_edges)
        table = label_table(bundle, link) if label_edges else message_table(bundle, edge_type)
        return cls(
            edge_type,
            table.indptr,
            table.indices,
            by_target=not label_edges,
            times=table.time,
            table_rows=_table_rows(bundle, edge_type, label_edges=label_edges),
        )

    @classmethod
    def of_pairs(cls, edge_type: EdgeType, sources: np.ndarray, targets: np.ndarray) -> SeedEdges:
        """Pairs of int64 dense ids, which need not be edges of the graph."""
        return cls(edge_type, None, targets, rows=sources)

    @property
    def num_edges(self) -> int:
        return len(self.others)

    def positions_of_rows(self) -> np.ndarray:
        """int64, positions of the edges without reverse copies."""
        if self.table_rows is None:
            return np.arange(self.num_edges)
        return np.flatnonzero(self.table_rows >= 0)

    def ends(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64, dense ids of the sources and of the targets of some edges."""
        others = self.others[positions].astype(np.int64)
        if self.rows is not None:
            return self.rows[positions].astype(np.int64), others
        assert self.indptr is not None
        rows = np.searchsorted(self.indptr, positions, side="right") - 1
        return (others, rows) if self.by_target else (rows, others)


def _table_rows(bundle: Bundle, edge_type: EdgeType, *, label_edges: bool) -> np.ndarray | None:
    if not label_edges:
        has_rows = ROW in bundle.columns(edge_type)
        return np.asarray(bundle.column(edge_type, ROW)) if has_rows else None
    edges = find_label_edges(bundle, edge_type, "positive")
    assert edges is not None
    return bundle.label_column(edges, ROW) if ROW in edges.columns else None


def split_labelled_edges(bundle: Bundle, link: LinkSplit) -> Splits:
    folder = link_folder(bundle, link)
    positions = {name: labelled_positions(folder, name) for name in SPLIT_NAMES}
    wanted = is_wanted(link.rule)
    empty = [name for name, is_made in wanted.items() if is_made and not len(positions[name])]
    if empty:
        sizes = ", ".join(f"{name} {len(edges):,}" for name, edges in positions.items())
        raise DataError(
            f"the edges of {edge_type_name(link.edge_type)} with a label {link.label!r} cannot be "
            f"split this way: {' and '.join(empty)} would be empty ({sizes}). Set other shares or "
            "bounds, or label edges of that split.",
            id="edges-split-empty",
        )
    return Splits(**positions)
