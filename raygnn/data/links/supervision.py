"""Supervision edges of each split, and all known links."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from raygnn.data.arrays import open_array, ragged_positions
from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import ROW
from raygnn.data.cache import build_once
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.links import kernels as link_kernels
from raygnn.data.links.folder import labelled_positions, link_folder, rows_of
from raygnn.data.links.message_graph import message_graph
from raygnn.data.links.split import LinkSplit, find_label_edges, label_table, message_table
from raygnn.data.splits import SPLIT_NAMES, Splits, empty_splits
from raygnn.data.time_units import AsOf
from raygnn.errors import DataError

_Csr = tuple[np.ndarray, np.ndarray]  # row bounds, and the columns of each row, ascending


@dataclass(frozen=True)
class SupervisionEdges:
    """Links in the loss of one split, by anchor: row i of `indptr` spans the targets of anchor i.

    A pair appears once, however many parallel edges it has. With `LinkSplit.by_time`, a row is an
    anchor at a time, and a pair appears once at each of its times. The arrays are memory-mapped.

    Attributes:
        edge_type: message edge type of these links, to exclude them from messages with its reverse;
            null if the links carry no messages.
        anchors: int64 [num_anchors], ascending dense ids; each has a target. With several
            relations, ordered by relation: an anchor appears once per relation. By time, an anchor
            appears once per time.
        indptr: int64 [num_anchors + 1].
        targets: int64 [num_links], dense ids, ascending within a row.
        times: int64 or float64 [num_links], the earliest of each pair, or null.
        hard_negatives: pairs known not to be linked, with a possibly empty row for each of the same
            anchors; null if the graph declares none.
        relations: int64 [num_anchors], relation of an anchor's links; null with one relation.
        edge_types: `edge_type` of each of several relations.
    """

    anchor_type: str
    target_type: str
    edge_type: EdgeType | None
    anchors: np.ndarray
    indptr: np.ndarray
    targets: np.ndarray
    times: np.ndarray | None = None
    hard_negatives: SupervisionEdges | None = None
    relations: np.ndarray | None = None
    edge_types: tuple[EdgeType | None, ...] = ()

    @property
    def message_types(self) -> tuple[EdgeType | None, ...]:
        """Message edge type of each relation; None if its links carry no messages."""
        return self.edge_types or (self.edge_type,)

    def row_of(self, links: np.ndarray) -> np.ndarray:
        """int64, rows of the anchors of links at these positions."""
        return np.searchsorted(self.indptr, links, side="right") - 1

    @property
    def num_anchors(self) -> int:
        return len(self.anchors)

    @property
    def num_links(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class KnownPositives:
    """Known links: row i spans the targets of anchor node i.

    Attributes:
        indptr: int64 [num_anchor_nodes + 1].
        targets: int32 or int64, dense ids, ascending within a row, with parallel edges repeated.
    """

    indptr: np.ndarray
    targets: np.ndarray

    def mask(self, anchors: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Whether each int64 anchor is linked to each int64 target, which may repeat: bool
        [num_anchors, num_targets].
        """
        mask = np.zeros((len(anchors), len(targets)), bool)
        wanted = _ids(targets)
        order = np.argsort(wanted, kind="stable")
        link_kernels.mark_known(
            self.indptr, self.targets, _ids(anchors), wanted[order], order, mask
        )
        return mask


@dataclass(frozen=True)
class KnownLinks:
    """Known links of one relation or of several.

    Attributes:
        is_one_type: anchors and targets have one node type, and none may link to itself.
        by_row: links of the rows of supervision edges, in place of anchors and relations.
    """

    parts: tuple[KnownPositives, ...]
    is_one_type: bool = False
    by_row: bool = False

    @classmethod
    def of_rows(cls, edges: SupervisionEdges) -> KnownLinks:
        """The links of each row. A row of one node type also has its anchor."""
        indptr, targets = edges.indptr, edges.targets
        if edges.anchor_type == edges.target_type:
            rows = np.arange(edges.num_anchors)
            of_links = np.concatenate([np.repeat(rows, np.diff(indptr)), rows])
            targets = np.concatenate([targets, edges.anchors])
            targets = targets[np.lexsort((targets, of_links))]
            indptr = indptr + np.arange(len(indptr))
        return cls((KnownPositives(indptr, targets),), by_row=True)

    def mask(
        self, anchors: np.ndarray, targets: np.ndarray, relations: np.ndarray | None = None
    ) -> np.ndarray:
        """Whether each anchor is linked to each target, or is it; see `KnownPositives.mask`."""
        if relations is None or self.by_row:
            mask = self.parts[0].mask(anchors, targets)
        else:
            mask = np.zeros((len(anchors), len(targets)), bool)
            for relation in np.unique(relations):
                rows = np.flatnonzero(relations == relation)
                mask[rows] = self.parts[relation].mask(anchors[rows], targets)
        if self.is_one_type:
            mask |= anchors[:, None] == targets
        return mask

    def rows(
        self, anchors: np.ndarray, relations: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Known targets of some anchors: int64 [num_anchors + 1] starts, and int64 dense ids."""
        if relations is None or self.by_row:
            relations = np.zeros(len(anchors), np.int64)
        rows = []
        for relation, anchor in zip(relations.tolist(), anchors.tolist(), strict=True):
            part = self.parts[relation]
            rows.append(part.targets[part.indptr[anchor] : part.indptr[anchor + 1]])
        bounds = np.cumsum([0, *(len(targets) for targets in rows)])
        return bounds, np.concatenate([np.empty(0, np.int64), *rows]).astype(np.int64)


def make_supervision(bundle: Bundle, *links: LinkSplit) -> dict[str, SupervisionEdges]:
    """Supervision edges of train, val and test, possibly empty.

    The first call on a node splits all edges and stores the result in the bundle's folder.

    Args:
        links: of each relation, all between the same node types and split by one rule.
    Raises:
        DataError: the links cannot be split this way, or a split that the rule makes is empty.
    """
    folders = [link_folder(bundle, link) for link in links]
    relations = {
        name: _joined([_read(bundle, *each, name) for each in zip(links, folders, strict=True)])
        for name in SPLIT_NAMES
    }
    sizes = {name: edges.num_links for name, edges in relations.items()}
    if empty := empty_splits(links[0].rule, sizes):
        others = " and others" if links[1:] else ""
        raise DataError(
            f"the links of {edge_type_name(links[0].edge_type)}{others} cannot be split this way: "
            f"{' and '.join(empty)} would be empty ({_shown(sizes)}). Set other shares, bounds or "
            "disjoint_train_ratio. [links-split-empty]"
        )
    return relations


def known_positives(
    bundle: Bundle, link: LinkSplit, split: str = "test", *, both_ways: bool = False
) -> KnownPositives:
    """Links of a type, as label edges and message edges, of a split and of the splits before it.

    Args:
        split: the last split, with `test` all links of the type.
        both_ways: anchors and targets have one type, and the reverse of a link is also known.
    Raises:
        DataError: the graph has no such links.
    """
    graph = bundle
    if split != "test":  # the messages of the next split are the links until this one
        graph = message_graph(bundle, [link], "val" if split == "train" else "test")
    has_messages = link.edge_type in bundle.edge_types
    is_sorted = not has_messages or message_table(bundle, link.edge_type).is_sorted
    tables: list[_Csr] = []
    if has_messages:
        csr = graph.csr(link.edge_type)
        tables.append((csr.indptr, csr.indices))
        if both_ways:
            csc = graph.csc(link.edge_type)
            is_undirected = is_sorted and np.array_equal(csr.indptr, csc.indptr)
            if not (is_undirected and np.array_equal(csr.indices, csc.indices)):
                tables.append((csc.indptr, csc.indices))
    if link.labels:
        for labels in _label_rows(bundle, link, split):
            tables += [labels, _transposed(labels)] if both_ways else [labels]
    if is_sorted and len(tables) == 1:
        return KnownPositives(*tables[0])
    name = edge_type_name(link.edge_type)
    shape = bundle.num_nodes(link.edge_type[0]), bundle.num_nodes(link.edge_type[2])
    parts = [f"{link.fingerprint}.{split}"] if split != "test" else []
    parts += [name, "labels" if link.labels else "messages"] + ["both"] * both_ways
    folder = build_once(
        bundle.path / "known" / ".".join(parts),
        lambda building: _build_known(tables, shape, building),
        f"the known links of {name}",
    )
    return KnownPositives(open_array(folder / "indptr.npy"), open_array(folder / "targets.npy"))


def known_positives_as_of(
    bundle: Bundle, link: LinkSplit, anchors: np.ndarray, as_of: AsOf
) -> KnownPositives:
    """The links of some distinct anchors up to a moment, including links without times.

    Other nodes have no targets in the result. Raises a DataError if the graph has no such links.
    """
    tables: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []
    if link.labels:
        labels = label_table(bundle, link)
        rows, places = ragged_positions(labels.indptr, anchors)
        times = None if labels.time is None else labels.time[places]
        tables.append((anchors[rows], labels.indices[places], times))
    if link.edge_type in bundle.edge_types:
        csr, times = bundle.csr(link.edge_type), None
        rows, places = ragged_positions(csr.indptr, anchors)
        if as_of.column in bundle.columns(link.edge_type):
            times = bundle.dense(link.edge_type, as_of.column)[csr.e_id[places]]
        tables.append((anchors[rows], csr.indices[places], times))
    known = [
        (rows, targets) if times is None else (rows[early := times <= as_of.time], targets[early])
        for rows, targets, times in tables
    ]
    rows, targets = (np.concatenate(parts) for parts in zip(*known, strict=True))
    indptr = np.zeros(bundle.num_nodes(link.edge_type[0]) + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=len(indptr) - 1), out=indptr[1:])
    return KnownPositives(indptr, targets[np.lexsort((targets, rows))])


def _read(bundle: Bundle, link: LinkSplit, folder: Path, name: str) -> SupervisionEdges:
    anchor_type, _, target_type = link.edge_type
    edge_type = link.edge_type if link.edge_type in bundle.edge_types else None
    negatives = None
    if (folder / f"{name}-negatives").exists():
        rows = rows_of(folder / f"{name}-negatives")
        negatives = SupervisionEdges(anchor_type, target_type, None, *rows)
    rows = rows_of(folder / name)
    return SupervisionEdges(anchor_type, target_type, edge_type, *rows, negatives)


def _joined(parts: Sequence[SupervisionEdges]) -> SupervisionEdges:
    if len(parts) == 1:
        return parts[0]
    negatives = [part.hard_negatives for part in parts]
    hard = None
    if any(part is not None for part in negatives):
        hard = _joined(
            [
                _without_links(of_links) if part is None else part
                for part, of_links in zip(negatives, parts, strict=True)
            ]
        )
    counts = np.concatenate([np.diff(part.indptr) for part in parts])
    has_times = all(part.times is not None or not part.num_links for part in parts)
    times = [part.times for part in parts if part.times is not None]
    return SupervisionEdges(
        parts[0].anchor_type,
        parts[0].target_type,
        None,
        np.concatenate([part.anchors for part in parts]),
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate(times) if has_times and times else None,
        hard,
        np.repeat(np.arange(len(parts)), [part.num_anchors for part in parts]),
        tuple(part.edge_type for part in parts),
    )


def _without_links(edges: SupervisionEdges) -> SupervisionEdges:
    empty = np.zeros(0, np.int64)
    return replace(
        edges, indptr=np.zeros_like(edges.indptr), targets=empty, times=None, hard_negatives=None
    )


def _label_rows(bundle: Bundle, link: LinkSplit, split: str) -> Iterator[_Csr]:
    labels = label_table(bundle, link)
    if split == "test":
        yield labels.indptr, labels.indices
        return
    for name in SPLIT_NAMES[: SPLIT_NAMES.index(split) + 1]:
        anchors, bounds, targets, _ = rows_of(link_folder(bundle, link) / name)
        counts = np.zeros(len(labels.indptr), np.int64)
        counts[anchors + 1] = np.diff(bounds)
        yield np.cumsum(counts), targets


def _transposed(rows: _Csr) -> _Csr:
    indptr, columns = rows
    bounds = np.zeros_like(indptr)
    np.cumsum(np.bincount(columns, minlength=len(indptr) - 1), out=bounds[1:])
    anchors = np.repeat(np.arange(len(indptr) - 1, dtype=columns.dtype), np.diff(indptr))
    return bounds, anchors[np.argsort(columns, kind="stable")]


def _build_known(tables: Sequence[_Csr], shape: tuple[int, int], folder: Path) -> None:
    from scipy import sparse  # the driver imports this module, and seldom builds

    links = [
        sparse.csr_array((np.ones(len(columns), bool), columns, indptr), shape, copy=True)
        for indptr, columns in tables
    ]
    known = reduce(operator.add, links)
    known.sum_duplicates()
    np.save(folder / "indptr.npy", known.indptr.astype(np.int64))
    np.save(folder / "targets.npy", known.indices.astype(tables[0][1].dtype))


def _ids(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.int64)


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

    def times_before(self, positions: np.ndarray) -> np.ndarray | None:
        """The latest time before each of some edges, int64 or float64; None without times."""
        if self.times is None:
            return None
        times = np.asarray(self.times[positions])
        if times.dtype.kind in "iu":
            return times.astype(np.int64) - 1
        return np.nextafter(times, -np.inf, dtype=np.float64)


def _table_rows(bundle: Bundle, edge_type: EdgeType, *, label_edges: bool) -> np.ndarray | None:
    if not label_edges:
        has_rows = ROW in bundle.columns(edge_type)
        return bundle.dense(edge_type, ROW) if has_rows else None
    edges = find_label_edges(bundle, edge_type, "positive")
    assert edges is not None
    return bundle.label_column(edges, ROW) if ROW in edges.columns else None


def split_labelled_edges(bundle: Bundle, link: LinkSplit) -> Splits:
    folder = link_folder(bundle, link)
    positions = {name: labelled_positions(folder, name) for name in SPLIT_NAMES}
    sizes = {name: len(edges) for name, edges in positions.items()}
    if empty := empty_splits(link.rule, sizes):
        raise DataError(
            f"the edges of {edge_type_name(link.edge_type)} with a label {link.label!r} cannot be "
            f"split this way: {' and '.join(empty)} would be empty ({_shown(sizes)}). Set other "
            "shares or bounds. [edges-split-empty]"
        )
    return Splits(**positions)


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items())
