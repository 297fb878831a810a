"""The schema stage: conversion of the table of a node type, edge type or set of label edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from raygnn.data import bundle_record
from raygnn.data.edge_types import EdgeType
from raygnn.data.id_map import IdKind, id_kind
from raygnn.data.ingest.column_plan import (
    DensePlan,
    SparsePlan,
    check_split,
    plan_feature,
    plan_label,
    plan_split,
    plan_time,
    plan_weight,
)
from raygnn.data.ingest.scan import ScannedTable, TableColumns, check_rows
from raygnn.data.manifest import (
    EdgeTable,
    LabelEdgeTable,
    NodeTable,
    SparseFeature,
    Table,
    TrainingTable,
)

# Predictions refer to the rows of the table, so edges that may be predicted have the row number.
_ROW_NUMBER = DensePlan(bundle_record.ROW, "row", (), "int64", ())


@dataclass(frozen=True)
class NodePlan:
    """The conversion of a node type's table, named `table` in messages. `columns` are dense."""

    table: str
    types: Mapping[str, pa.DataType]
    id_column: str
    id_kind: IdKind
    columns: tuple[DensePlan, ...]
    sparse: tuple[SparsePlan, ...]
    split: str | None


# Arrays of the dense ids of sources and targets, in a folder of edges that were read.
SRC, DST = "src.npy", "dst.npy"


class End(NamedTuple):
    """A column of original ids of nodes, and the array of their dense ids."""

    array: str
    column: str
    node_type: str


@dataclass(frozen=True)
class EdgePlan:
    """The conversion of the table of an edge type, or of a set of label edges.

    Label edges are stored by anchor, so their targets replace the sources here.

    Attributes:
        folder: path relative to the bundle.
        undirected: each row also represents its reverse.
        by_time: edges of a destination are ordered by time first.
        reverse: edge type made from the reversed rows, if any.
        is_swapped: this is such a reverse: source and target are swapped in the rows.
    """

    table: str
    edge_type: EdgeType
    folder: str
    types: Mapping[str, pa.DataType]
    source: str
    target: str
    columns: tuple[DensePlan, ...]
    undirected: bool = False
    by_time: bool = True
    reverse: EdgeType | None = None
    is_swapped: bool = False

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def ends(self) -> tuple[End, ...]:
        source, _, target = self.edge_type
        return End(SRC, self.source, source), End(DST, self.target, target)

    @property
    def what(self) -> str:
        return f"edges of type {self.name}"


@dataclass(frozen=True)
class TrainingPlan:
    """The conversion of a training table. `node`: column of the entities' original ids."""

    table: str
    name: str
    folder: str
    types: Mapping[str, pa.DataType]
    node_type: str
    node: str
    columns: tuple[DensePlan, ...]
    window: str | float | None

    @property
    def ends(self) -> tuple[End, ...]:
        return (End(bundle_record.NODES, self.node, self.node_type),)

    @property
    def what(self) -> str:
        return f"rows of training table {self.name!r}"


def id_columns(table: Table) -> dict[str, str]:
    keys = ("id", "source", "target", "node")
    return {key: getattr(table, key) for key in keys if hasattr(table, key)}


def table_columns(table: Table) -> TableColumns:
    ids, weight = id_columns(table).values(), getattr(table, "weight", None)
    time = None if table.time is None else table.time.column
    labels = [column for label in table.labels.values() for column in label.columns]
    features: list[str | None] = []
    indices = []
    for spec in getattr(table, "features", {}).values():
        if isinstance(spec, SparseFeature):
            indices.append(spec.indices)
            features += [spec.indices, spec.values]
        else:
            features += spec.column_names
    listed = dict.fromkeys([*ids, weight, table.split, time, *features, *labels])
    names = [name for name in listed if name is not None]
    exact = {*ids, table.split, time, *labels, *indices}
    own_id = table.id if isinstance(table, NodeTable) else None
    return TableColumns(names, frozenset(names) - exact, own_id)


def plan_nodes(table: NodeTable, scanned: ScannedTable, feature_dtype: str | None) -> NodePlan:
    check_rows(scanned)
    features = [
        plan_feature(scanned, name, spec, feature_dtype) for name, spec in table.features.items()
    ]
    columns = [plan for plan in features if isinstance(plan, DensePlan)]
    columns.extend(plan_label(scanned, name, spec) for name, spec in table.labels.items())
    if table.time is not None:
        columns.append(plan_time(scanned, table.time))
    if table.split is not None:
        check_split(scanned, table.split)
    return NodePlan(
        scanned.name,
        scanned.types,
        table.id,
        id_kind(scanned.types[table.id], f"{scanned.name}.id={table.id!r}"),
        tuple(columns),
        tuple(plan for plan in features if isinstance(plan, SparsePlan)),
        table.split,
    )


def plan_training(name: str, table: TrainingTable, scanned: ScannedTable) -> TrainingPlan:
    check_rows(scanned)
    return TrainingPlan(
        scanned.name,
        name,
        bundle_record.training_table_folder(name),
        scanned.types,
        table.node_type,
        table.node,
        tuple(_plan_roles(table, scanned)),
        table.window,
    )


def plan_edges(
    table: EdgeTable,
    scanned: ScannedTable,
    undirected: bool,
    reverse: EdgeType | None,
    feature_dtype: str | None,
) -> EdgePlan:
    columns = [
        plan
        for name, spec in table.features.items()
        if isinstance(plan := plan_feature(scanned, name, spec, feature_dtype), DensePlan)
    ]
    return EdgePlan(
        scanned.name,
        table.type,
        bundle_record.edge_folder(table.type),
        scanned.types,
        table.source,
        table.target,
        (*columns, *_plan_roles(table, scanned), *([_ROW_NUMBER] if table.labels else [])),
        undirected,
        reverse=reverse,
    )


def plan_label_edges(table: LabelEdgeTable, scanned: ScannedTable) -> EdgePlan:
    anchor, relation, target = table.type
    return EdgePlan(
        scanned.name,
        (target, relation, anchor),
        bundle_record.label_edge_folder(table.type, table.sign),
        scanned.types,
        table.target,
        table.source,
        (*_plan_roles(table, scanned), _ROW_NUMBER),
        by_time=False,
    )


def plan_reverse(plan: EdgePlan) -> EdgePlan:
    """The plan of the edge type made from another one's rows, if `plan` has a reverse."""
    if plan.reverse is None:
        raise ValueError(f"{plan.table} has no reverse")
    return replace(
        plan,
        edge_type=plan.reverse,
        folder=bundle_record.edge_folder(plan.reverse),
        source=plan.target,
        target=plan.source,
        columns=tuple(column for column in plan.columns if column.role != "row"),
        reverse=plan.edge_type,
        is_swapped=True,
    )


def _plan_roles(
    table: EdgeTable | LabelEdgeTable | TrainingTable, scanned: ScannedTable
) -> Iterator[DensePlan]:
    for name, spec in table.labels.items():
        yield plan_label(scanned, name, spec)
    if table.weight is not None:
        yield plan_weight(scanned, table.weight)
    if table.time is not None:
        yield plan_time(scanned, table.time)
    if table.split is not None:
        yield plan_split(scanned, table.split)
