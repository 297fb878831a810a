"""A graph without rows, as a model's spec describes it: enough to build the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raygnn.data.bundle import Bundle
from raygnn.data.bundle_record import BundleRecord, ColumnInfo, EdgeRecord, NodeRecord
from raygnn.data.edge_types import edge_type_name
from raygnn.data.id_map import IdIndex
from raygnn.data.transforms.state import FittedFeature
from raygnn.loops.model_spec import ModelSpec


def schema_bundle(spec: ModelSpec) -> Bundle:
    """The types and columns that a model reads, without rows.

    Only node types with learned rows have nodes: as many as the model has rows.
    """
    nodes = {
        name: NodeRecord(
            read.num_nodes or 0,
            IdIndex("range", 0, read.num_nodes or 0),
            _columns({} if read.width is None else {spec.feature: read.width}, spec, name),
            has_split=False,
        )
        for name, read in spec.node_types.items()
    }
    names = {edge_type: edge_type_name(edge_type) for edge_type in spec.edge_types}
    edges = tuple(
        EdgeRecord(
            edge_type,
            0,
            True,
            _columns(
                {column: w[name] for column, w in spec.edge_columns.items() if name in w},
                spec,
                name,
            ),
        )
        for edge_type, name in names.items()
    )
    return Bundle(Path("schema"), BundleRecord("", nodes, edges))


def _columns(widths: Mapping[str, int], spec: ModelSpec, type_: str) -> tuple[ColumnInfo, ...]:
    fitted: Mapping[str, FittedFeature] = spec.transforms.get(type_, {})
    return tuple(
        ColumnInfo(column, "feature", "float32", (width,), transforms=fitted.get(column))
        for column, width in widths.items()
    )
