"""The schema stage: how the table of a node type, edge type or set of label edges is converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from raygnn.data.bundle_record import label_edge_folder, training_table_folder
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


@dataclass(frozen=True)
class NodePlan:
    """How the table of one node type is converted.

    Attributes:
        table: name for messages.
        types: plain Arrow type of each column that is read.
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
    """How the table of one edge type, or of one set of label edges, is converted.

    Label edges are laid out by anchor, so their targets take the place of the sources here.

    Attributes:
        table: name for messages.
        folder: path below the bundle's folder.
        types: plain Arrow type of each column that is read.
        undirected: each row stands for its reverse as well.
        by_time: the edges of a destination are ordered by time before all else.
        reverse: edge type that is made of the same rows, the other way round; None for none.
        is_swapped: this is such a reverse: source and target have changed places in the rows.
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
        """A name for messages and work folders."""
        return self.folder.rpartition("/")[2]

    @property
    def what(self) -> str:
        """Names the rows in messages."""
        return f"edges of type {self.name}"


@dataclass(frozen=True)
class TrainingPlan:
    """How a training table is converted.

    Attributes:
        table: name for messages.
        folder: path below the bundle's folder.
        types: plain Arrow type of each column that is read.
        node: column of the original ids of entities, which are of `node_type`.
    """

    table: str
    name: str
    folder: str
    types: Mapping[str, pa.DataType]
    node_type: str
    node: str
    columns: tuple[DensePlan, ...]

    @property
    def what(self) -> str:
        """Names the rows in messages."""
        return f"rows of training table {self.name!r}"


def node_columns(table: NodeTable) -> list[str]:
    """The table columns that a node type needs."""
    return needed_columns(table.features, table.labels, table.time, [table.id, table.split])


def plan_nodes(table: NodeTable, scanned: ScannedTable, feature_dtype: str | None) -> NodePlan:
    """Plans a node type.

    Raises:
        DataError: a column has a type that does not fit its role, or there are no rows.
    """
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
    """The table columns that a training table needs."""
    return needed_columns({}, table.labels, table.time, [table.node, table.split])


def plan_training(name: str, table: TrainingTable, scanned: ScannedTable) -> TrainingPlan:
    """Plans a training table.

    Raises:
        DataError: a column has a type that does not fit its role, or there are no rows.
    """
    check_rows(scanned)
    return TrainingPlan(
        scanned.name,
        name,
        training_table_folder(name),
        scanned.types,
        table.node_type,
        table.node,
        tuple(_plan_roles(table, scanned)),
    )


def edge_columns(table: EdgeTable | LabelEdgeTable) -> list[str]:
    """The table columns that an edge type or a set of label edges needs."""
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
    """Plans an edge type.

    Args:
        reverse: edge type to make of the same rows, the other way round.
    Raises:
        DataError: a column has a type that does not fit its role.
    """
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
        (*columns, *_plan_roles(table, scanned)),
        undirected,
        reverse=reverse,
    )


def plan_label_edges(table: LabelEdgeTable, scanned: ScannedTable) -> EdgePlan:
    """Plans a set of label edges.

    Raises:
        DataError: a column has a type that does not fit its role.
    """
    anchor, relation, target = table.type
    return EdgePlan(
        scanned.name,
        (target, relation, anchor),
        label_edge_folder(table.type, table.sign),
        scanned.types,
        table.target,
        table.source,
        tuple(_plan_roles(table, scanned)),
        by_time=False,
    )


def plan_reverse(plan: EdgePlan) -> EdgePlan:
    """The plan of the edge type that is made of the rows of another one.

    Raises:
        ValueError: the plan asks for no reverse.
    """
    if plan.reverse is None:
        raise ValueError(f"{plan.table} has no reverse")
    return replace(
        plan,
        edge_type=plan.reverse,
        folder=edge_folder(plan.reverse),
        source=plan.target,
        target=plan.source,
        reverse=plan.edge_type,
        is_swapped=True,
    )


def edge_folder(edge_type: EdgeType) -> str:
    """The folder of an edge type, below the bundle's."""
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
