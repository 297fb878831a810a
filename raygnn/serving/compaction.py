"""Compaction: the rows of an event log as further files of the tables of a graph.

See `raygnn.data.compactions`. The log itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic_core import from_json

from raygnn.config import load_config
from raygnn.data import compactions
from raygnn.data.edge_types import edge_type_name
from raygnn.data.event_log import EventLog
from raygnn.data.extended_bundle import ExtendedBundle
from raygnn.data.filesystem import absolute, join, redact, write_text
from raygnn.data.ingest.scan import scan_tables
from raygnn.data.ingest.schedule import in_process
from raygnn.data.ingest.table_plan import table_columns
from raygnn.data.manifest import MANIFEST_NAME, DenseFeature, Manifest, Table, manifest_folder
from raygnn.data.tables.files import list_files, write_parquet
from raygnn.data.time_units import date_as_time
from raygnn.documents import dump_yaml
from raygnn.errors import DataError
from raygnn.inference.logged_rows import LoggedRows
from raygnn.trained_model import TrainedModel


def overrides_of(overrides: Sequence[str], graph: str, log: str | None, tables: str) -> list[str]:
    """Overrides of `raygnn.load` that name tables, which may name files of `graph` and `log`."""
    named = [*overrides, "--data.uri", tables]
    if log is None or tables == absolute(graph):
        return named
    allowed = load_config({}, overrides).config.data.allow_outside
    places = [*allowed, manifest_folder(absolute(graph)), join(absolute(log), compactions.FOLDER)]
    return [*named, "--data.allow_outside", dump_yaml(places, flow_leaves=True).strip()]


def compact(
    load: Callable[[Sequence[str]], TrainedModel],
    graph: str,
    log: str,
    overrides: Sequence[str] = (),
) -> compactions.GrownTables:
    """Writes the rows of a log that came after the newest compaction beside the tables.

    Rows that do not fit the graph are left out, as by all servers. The tables are ingested for the
    model, so that servers find them in the cache.

    Args:
        load: loads the model with overrides.
        graph: folder or URI of the tables without rows of the log.
    Returns:
        The newest tables, also if no rows came after them.
    Raises:
        DataError: a value cannot be written into the tables, or the log is damaged. The log and
            earlier compactions are unchanged.
    """
    before = compactions.newest_tables(graph, log)
    opened = load(overrides_of(overrides, graph, log, before.uri)).open()
    rows = LoggedRows.of(opened, before.position)
    accepted: dict[str, list[dict[str, Any]]] = {}
    read = EventLog.create(log, *before[1:])
    for segment in read.read():
        checked = rows.check(segment.rows)
        for position in sorted(checked.accepted):
            name, text = segment.rows[position]
            accepted.setdefault(name, []).append(from_json(text))
        rows.add(segment, checked)
    if rows.position == before.position:
        return before
    rows.warn_of_refused()
    folder = compactions.folder_of(log, rows.position)
    manifest = opened.manifest()
    assert manifest is not None
    _write(folder, before.uri, manifest, accepted)
    grown = load(overrides_of(overrides, graph, log, folder)).open().bundle
    expected = ExtendedBundle(opened.bundle, rows.addition)
    for type_ in grown.types:
        count = "num_nodes" if isinstance(type_, str) else "num_edges"
        if (found := getattr(grown, count)(type_)) != (wanted := getattr(expected, count)(type_)):
            raise DataError(
                f"LOG={redact(log)!r} cannot be compacted: {type_} has {found:,} rows instead of "
                f"{wanted:,}. Check data.on_error and the tables. [events-compacted-rows]"
            )
    return compactions.seal_compaction(graph, read, before.position, rows.num_refused)


def _write(
    folder: str, uri: str, manifest: Manifest, rows: dict[str, list[dict[str, Any]]]
) -> None:
    """Writes a graph whose tables are those of another one and further rows."""
    root, files = manifest_folder(absolute(uri)), dict[str, list[str]]()
    types = {f"node_types.{name}": name for name in manifest.node_types}
    edges = (edge_type_name(table.type) for table in manifest.edge_types)
    types |= {f"edge_types.{name}": name for name in edges}
    for place, table in manifest.all_tables.items():
        files[place] = [join(root, pattern) for pattern in table.files]
        new = rows.get(types.get(place, ""), [])
        if new:
            name = f"{place}.parquet"
            write_parquet(_table(place, table, files[place], new), join(folder, name))
            files[place].append(name)
    write_text(join(folder, MANIFEST_NAME), manifest.with_files(files).dump())


def _table(
    place: str, table: Table, patterns: Sequence[str], rows: Sequence[dict[str, Any]]
) -> pa.Table:
    columns, listed = table_columns(table), list_files("", patterns, place, None, table.csv)
    (scanned,) = scan_tables([(place, listed, columns)], in_process)
    features = getattr(table, "features", {}).values()
    dense = [feature for feature in features if isinstance(feature, DenseFeature)]
    dtypes = {name: f.dtype or "float32" for f in dense for name in f.column_names}
    arrays = {}
    for name in columns.names:
        kind, values = scanned.types[name], [row.get(name) for row in rows]
        try:
            if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
                times = [date_as_time(v) if isinstance(v, str) else v for v in values]
                arrays[name] = pa.array(times, pa.timestamp("us", getattr(kind, "tz", None)))
                arrays[name] = arrays[name].cast(kind)
            elif pa.types.is_fixed_size_binary(kind):
                dtype = dtypes[name]
                stored = [v if v is None else np.asarray(v, dtype).tobytes() for v in values]
                arrays[name] = pa.array(stored, kind)
            elif all(value is None for value in values):
                arrays[name] = pa.nulls(len(values), kind)
            else:
                arrays[name] = pa.array(values).cast(kind)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise DataError(
                f"{place} cannot be compacted: a value of {name!r} is not {kind}, as in the tables "
                f"({str(error)[:100]}). Begin a new log. [events-compacted-column]"
            ) from error
    return pa.table(arrays)
