"""Rows of (entity, label) from a column of the entities, to fill it in where it is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.manifest import Manifest
from raygnn.errors import DataError
from raygnn.prepare.drafts.columns import FEW_CLASSES
from raygnn.prepare.label_query import LabelQuery
from raygnn.prepare.labels import LabelRows, LabelTables, RowColumns, check_weights

_LABEL = "label"


def column_rows(tables: LabelTables, manifest: Manifest, query: LabelQuery) -> LabelRows:
    """Rows of (entity, label) of the entities that have one, and the graph without the features
    that contain it. Raises a DataError if all have the same value or none.
    """
    assert query.node_type is not None
    key = manifest.node_types[query.node_type].id
    columns = RowColumns(None, key, query.node_type, (_LABEL,), weight=query.weight)
    features = _without(manifest, query.answers)
    tables.run([])
    num_unknown = tables.drop_unknown(columns, "asked")
    warnings = tables.leaks(columns, features)
    rows = tables.every_row(columns)
    num_entities = tables.count_rows(query.node_type)
    check_weights(rows, columns.weight)
    values, lines = rows.column(_LABEL), list[str]()
    num_values = len(pc.unique(values))
    if num_values < 2:
        raise DataError(
            f"--predict is invalid: {len(rows):,} {query.node_type} have a label, with "
            f"{num_values} values, and there is nothing to learn. Ask for another column. "
            "[labels-one-value]"
        )
    if pa.types.is_integer(values.type) and num_values > FEW_CLASSES:
        position = rows.schema.get_field_index(_LABEL)
        rows = rows.set_column(position, _LABEL, values.cast(pa.float64()))
        lines.append(f"{num_values:,} whole numbers are read as numbers, not as classes")
    lines.insert(0, f"{len(rows):,} of {num_entities:,} {query.node_type} have a label")
    if num_unknown:
        lines.append(f"{num_unknown:,} rows of unknown {query.node_type} are left out")
    if features != manifest:
        lines += [
            f"{node_type}.{column} is no feature any more; draft again to restore it"
            for node_type, column in query.answers
        ]
    nodes = manifest.node_types[query.node_type]
    if any(edges.time is not None and edges.files == nodes.files for edges in manifest.edge_types):
        warnings += (  # the nodes are events
            f"{query.node_type} have times, and training rows are drawn among later ones too. To "
            "predict new rows from older ones, run raygnn prepare draft with --task TABLE.COLUMN.",
        )
    return LabelRows(columns, rows, features, lines, warnings)


def without_features(text: str, answers: Sequence[tuple[str, str]]) -> str:
    """A graph.yaml in the style of drafts without these columns of node types."""
    for node_type, column in answers:
        text = _without_lines(text, node_type, column)
    return text


def _without(manifest: Manifest, answers: Sequence[tuple[str, str]]) -> Manifest:
    """The manifest without features of these node types and columns."""
    content = manifest.model_dump(mode="json")
    for node_type, column in answers:
        kept: dict[str, Any] = {}
        for name, spec in content["node_types"][node_type]["features"].items():
            if "columns" not in spec:
                kept |= {} if column in spec.values() else {name: spec}
                continue
            names = [each if isinstance(each, str) else each["column"] for each in spec["columns"]]
            pairs = zip(names, spec["columns"], strict=True)
            if others := [each for name_of, each in pairs if name_of != column]:
                kept[name] = {**spec, "columns": others}
        content["node_types"][node_type]["features"] = kept
    return Manifest.model_validate(content)


def _without_lines(text: str, node_type: str, column: str) -> str:
    quoted = rf"[\"']?{re.escape(column)}[\"']?"
    line = rf"^ +- (\{{column: {quoted}[,}}].*|{quoted})[ \t]*(#.*)?\n"
    empty = r"^ +features:[ \t]*\n +\S+:[ \t]*\n(?! +- )"
    block = rf"^  [\"']?{re.escape(node_type)}[\"']?:.*\n(?:   .*\n|\n)*"

    def shortened(found: re.Match[str]) -> str:
        rest = re.sub(line, "", found[0], flags=re.MULTILINE)
        return re.sub(empty, "", rest, flags=re.MULTILINE)

    return re.sub(block, shortened, text, count=1, flags=re.MULTILINE)
