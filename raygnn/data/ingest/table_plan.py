"""The schema stage: conversion of the table of a node type, edge type or set of label edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from raygnn.data.bundle_record import ROW, label_edge_folder, training_table_folder
from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.data.id_map import IdKind, id_kind
from raygnn.data.ingest.column_plan import (
    DensePlan,
    SparsePlan,
    check_split,
    needed_columns,
    plan_feature,
    plan_label,
    plan_split,
    plan_time,
    plan_weight,
)
from raygnn.data.ingest.scan import ScannedTable, check_rows
from raygnn.data.manifest import EdgeTable, LabelEdgeTable, NodeTable, TrainingTable

# Predictions refer to the rows of the table, so edges that may be predicted have the row number.
_ROW_NUMBER = DensePlan(ROW, "row", (), "int64", ())


@dataclass(frozen=True)
class NodePlan:
    """The conversion of a node type's table.

    Attributes:
        table: name for messages.
        types: plain Arrow type of each read column.
        columns: dense features, labels and times.
    """

    table: str
    types: Mapping[str, pa.DataType]
    id_column: str
    id_kind: IdKind
    columns: tuple[DensePlan, ...]
    sparse: tuple[SparsePlan, ...]
    split: str | None


@dataclass(frozen=True)
class EdgePlan:
    """The conversion of the table of an edge type, or of a set of label edges.

    Label edges are stored by anchor, so their targets replace the sources here.

    Attributes:
        table: name for messages.
        folder: path relative to the bundle.
        types: plain Arrow type of each read column.
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
    def what(self) -> str:
        return f"edges of type {self.name}"


@dataclass(frozen=True)
class TrainingPlan:
    """The conversion of a training table.

    Attributes:
        table: name for messages.
        folder: path relative to the bundle.
        types: plain Arrow type of each read column.
        node: column of the entities' original ids, of type `node_type`.
        window: time after which a label is known.
    """

    table: str
    name: str
    folder: str
    types: Mapping[str, pa.DataType]
    node_type: str
    node: str
    columns: tuple[DensePlan, ...]
    window: str | float | None

    @property
    def what(self) -> str:
        return f"rows of training table {self.name!r}"


def node_columns(table: NodeTable) -> list[str]:
    return needed_columns(table.features, table.labels, table.time, [table.id, table.split])


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


def training_columns(table: TrainingTable) -> list[str]:
    return needed_columns({}, table.labels, table.time, [table.node, table.split])


def plan_training(name: str, table: TrainingTable, scanned: ScannedTable) -> TrainingPlan:
    check_rows(scanned)
    return TrainingPlan(
        scanned.name,
        name,
        training_table_folder(name),
        scanned.types,
        table.node_type,
        table.node,
        tuple(_plan_roles(table, scanned)),
        table.window,
    )


def edge_columns(table: EdgeTable | LabelEdgeTable) -> list[str]:
    features = table.features if isinstance(table, EdgeTable) else {}
    others = [table.source, table.target, table.weight, table.split]
    return needed_columns(features, table.labels, table.time, others)


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
        edge_folder(table.type),
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
        label_edge_folder(table.type, table.sign),
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
        folder=edge_folder(plan.reverse),
        source=plan.target,
        target=plan.source,
        columns=tuple(column for column in plan.columns if column.role != "row"),
        reverse=plan.edge_type,
        is_swapped=True,
    )


def edge_folder(edge_type: EdgeType) -> str:
    return f"edges/{edge_type_name(edge_type)}"


def _plan_roles(
    table: EdgeTable | LabelEdgeTable | TrainingTable, scanned: ScannedTable
) -> Iterator[DensePlan]:
    for name, spec in table.labels.items():
        yield plan_label(scanned, name, spec)
    if not isinstance(table, TrainingTable) and table.weight is not None:
        yield plan_weight(scanned, table.weight)
    if table.time is not None:
        yield plan_time(scanned, table.time)
    if table.split is not None:
        yield plan_split(scanned, table.split)
