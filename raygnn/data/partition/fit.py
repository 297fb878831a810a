"""Rows that transforms and standardization of a partitioned graph are fitted on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from raygnn.data import bundle_record
from raygnn.data.arrays import open_array
from raygnn.data.edge_types import edge_type_name
from raygnn.data.fit_rows import FitRows, declared_fit_rows
from raygnn.data.ingest.describe import measure_features
from raygnn.data.ingest.schedule import Schedule
from raygnn.data.partition.part import Outline, Pairs
from raygnn.data.partition.record import PartitionRecord, part_folder

#: Opens the outline of the written parts, with pairs of some edge types.
OpenOutline = Callable[[Pairs | None], Outline]


def _find_declared(graph: bundle_record.BundleRecord, open_outline: OpenOutline) -> FitRows:
    if not graph.training_tables and not graph.label_edges:
        return FitRows()
    return declared_fit_rows(open_outline({} if graph.label_edges else None))


@dataclass(frozen=True)
class RowsToFit:
    """Finds the rows that transforms and standardization of a partitioned graph are fitted on.

    Attributes:
        key: differs if `find` does.
        find: gets the record of the graph.
    """

    key: str = "declared"
    find: Callable[[bundle_record.BundleRecord, OpenOutline], FitRows] = _find_declared


def steps_with_transforms(graph: bundle_record.BundleRecord) -> frozenset[str]:
    """The steps whose results change with the transforms of features."""
    columns = {name: node.columns for name, node in graph.nodes.items()}
    columns |= {bundle_record.edge_folder(edge.type): edge.columns for edge in graph.edges}
    return frozenset(
        f"{step}/{name}"
        for name, infos in columns.items()
        if any(info.transforms is not None for info in infos)
        for step in ("read", "nodes", "sort")
    )


def measure_rows_to_fit(
    record: PartitionRecord,
    folder: Path,
    open_outline: OpenOutline,
    rows: FitRows,
    schedule: Schedule,
) -> PartitionRecord:
    """Adds statistics of the rows to fit on, and the number of edges up to the end of training."""
    fit = bundle_record.PartsFit(str(rows), rows.digest, rows.until)
    if rows.are_all:
        return replace(record, whole=replace(record.whole, fit=fit))
    outline, whole = open_outline(None), record.whole
    folders = [part_folder(folder, part) for part in range(record.num_parts)]
    columns: dict[str, tuple[Sequence[bundle_record.ColumnInfo], Sequence[Path]]] = {}
    chosen: dict[str, Sequence[np.ndarray]] = {}
    for name, node in whole.nodes.items():
        mask = rows.mask(outline, name)
        if mask is not None:
            columns[name] = (
                node.columns,
                [bundle_record.node_folder(part, name) for part in folders],
            )
            chosen[name] = np.split(mask, record.first_ids(name)[1:-1])
    num_edges = {}
    for edge in whole.edges:
        stored = [part / bundle_record.edge_folder(edge.type) for part in folders]
        sources = outline.columns(edge.type[0])
        if rows.limit(outline.columns(edge.type)):
            times = [open_array(bundle_record.column_path(part, "time"), "r") for part in stored]
            masks = [of_part <= rows.until for of_part in times]
            if any(mask.any() for mask in masks):
                columns[bundle_record.edge_folder(edge.type)] = edge.columns, stored
                chosen[bundle_record.edge_folder(edge.type)] = masks
        elif rows.limit(sources):
            known = outline.dense(edge.type[0], "time") <= rows.until
            masks = [known[open_array(part / bundle_record.INDICES, "r")] for part in stored]
        else:
            continue
        num_edges[edge_type_name(edge.type)] = sum(int(mask.sum()) for mask in masks)
    measured = measure_features(columns, schedule, chosen=chosen)
    whole = replace(
        whole,
        nodes={
            name: replace(node, columns=measured.get(name, node.columns))
            for name, node in whole.nodes.items()
        },
        edges=tuple(
            replace(edge, columns=measured.get(bundle_record.edge_folder(edge.type), edge.columns))
            for edge in whole.edges
        ),
        fit=replace(fit, num_edges=num_edges),
    )
    return replace(record, whole=whole)
