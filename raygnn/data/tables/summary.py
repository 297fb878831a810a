"""Summary lines of graph tables."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.edge_types import edge_type_name
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.tables.columns import FeatureSpec
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows

# A type for each relation of a knowledge graph would fill the screen.
_MAX_EDGE_TYPES = 20
_FEW_EDGE_TYPES = 5


def summarize_tables(tables: GraphTables) -> Iterator[str]:
    """A line for each node type and edge type, then the notes."""
    for name, node in tables.nodes.items():
        parts = [f"{node.table.num_rows:,} nodes"]
        parts += [_feature(node.table, name, spec) for name, spec in node.features.items()]
        parts += [_label(node.table, name, spec) for name, spec in node.labels.items()]
        if node.split is not None:
            parts.append(_split_sizes(node))
        yield f"node type {name}: {'; '.join(parts)}"
    shown = list(tables.edges.items())
    for edge_type, edge in shown if len(shown) <= _MAX_EDGE_TYPES else shown[:_FEW_EDGE_TYPES]:
        yield f"edge type {edge_type_name(edge_type)}: {_edges(edge)}"
    if len(shown) > _MAX_EDGE_TYPES:
        num_edges = sum(edge.table.num_rows for _, edge in shown)
        yield f"... {len(shown)} edge types with {num_edges:,} edges in all"
    for (edge_type, sign), edge in tables.label_edges.items():
        yield f"{sign} label edges {edge_type_name(edge_type)}: {_edges(edge)}"
    for note in tables.notes:
        yield f"note: {note}"


def _edges(edge: EdgeRows) -> str:
    if edge.table.num_rows == 0:
        return "no edges, left out"
    parts = [f"{edge.table.num_rows:,} {'directed' if edge.directed else 'undirected'} edges"]
    parts += [_feature(edge.table, name, spec) for name, spec in edge.features.items()]
    parts += [role for role in ("weight", "time") if getattr(edge, role) is not None]
    if edge.split is not None:
        parts.append(_split_sizes(edge))
    return "; ".join(parts)


def _feature(table: pa.Table, name: str, spec: FeatureSpec) -> str:
    if isinstance(spec, list):
        return f"feature {name} of {len(spec)} columns"
    if isinstance(spec, dict) and "dim" in spec:
        return f"feature {name} of {spec['dim']:,} dimensions, sparse"
    column, dtype = (
        (spec["columns"], spec["dtype"]) if isinstance(spec, dict) else (spec, "float32")
    )
    column_type = table.schema.field(column).type
    if not pa.types.is_fixed_size_binary(column_type):
        return f"feature {name}, a {column_type}"
    width = column_type.byte_width // np.dtype(str(dtype)).itemsize
    return f"feature {name} of {width:,} dimensions, {dtype}"


def _label(table: pa.Table, name: str, spec: FeatureSpec) -> str:
    column = table.column(spec["columns"] if isinstance(spec, dict) else spec)
    if pa.types.is_fixed_size_list(column.type):
        return f"label {name} of {column.type.list_size} targets"
    if pa.types.is_floating(column.type):
        return f"label {name}, a number"
    classes = pc.unique(column.drop_null())
    if pa.types.is_integer(column.type):
        classes = classes.filter(pc.greater_equal(classes, 0))
    return f"label {name} of {len(classes)} classes"


def _split_sizes(rows: NodeRows | EdgeRows) -> str:
    counts = {
        entry["values"]: entry["counts"]
        for entry in pc.value_counts(rows.table.column(rows.split)).to_pylist()
    }
    sizes = [f"{name} {counts.get(name, 0):,}" for name in SPLIT_NAMES]
    if counts.get(None):
        sizes.append(f"none {counts[None]:,}")
    return f"split {', '.join(sizes)}"
