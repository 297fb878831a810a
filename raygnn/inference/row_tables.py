"""Rows of (entity, time): read from a table, predicted, or ranked with the best targets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.config import Config
from raygnn.console import warn
from raygnn.data.bundle import Bundle, SeedRows
from raygnn.data.filesystem import write_bytes
from raygnn.data.links.split import time_unit_of
from raygnn.data.manifest import DateFormat, Manifest, TrainingTable
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.tables.files import named_files, write_parquet
from raygnn.data.tables.read_ids import look_up_ids, read_columns, read_id_files
from raygnn.data.time_units import AsOf, parse_time, unit_words
from raygnn.data.transforms.values import is_text_type, parsed_times
from raygnn.errors import ConfigError, DataError
from raygnn.inference.job import TableRequest, TopKRequest, check_k, find_score
from raygnn.loops.model_spec import ModelSpec, Output
from raygnn.loops.tasks.link_prediction.target import LinkOutput, LinkTarget, LinkTargetArguments
from raygnn.loops.tasks.node_classification.target import (
    NodeOutput,
    NodeTarget,
    NodeTargetArguments,
    find_table,
)
from raygnn.sampling.loader import RowPlan

ID, TIME = "id", "time"
#: Targets of a row, unless a number is set.
DEFAULT_K = 10
_FAR_US = 366 * 86_400 * 1_000_000


@dataclass(frozen=True)
class RowRequest:
    """Rows to predict, as a user names them.

    Attributes:
        rows: name of a training table, or relation of label edges, of the graph; or a DataFrame,
            Arrow table or mapping with the columns `id` (original ids) and `time`, or their names
            in the model's training table.
        split: train, val or test of the rows that the model was trained on; None for all.
        moment: time of rows that consist of ids only.
    """

    rows: Any
    split: str | None
    moment: AsOf | None
    declared: TrainingTable | None


def request_rows(
    spec: ModelSpec,
    config: Config,
    bundle: Bundle,
    request: RowRequest,
    *,
    what: str | None = None,
    k: int | None = None,
) -> TableRequest | TopKRequest:
    """Requests predictions of rows, or the k best targets of each."""
    if k is not None:
        return link_rows_request(spec, config, bundle, request, k)
    plan = find_rows(spec, config, bundle, request)
    return replace(TableRequest.of(spec, what, (plan.rows.node_type,)), plan=plan)


def declared_table(manifest: Manifest | None, output: Output) -> TrainingTable | None:
    """The training table of a model, if the graph's tables have it."""
    if manifest is None or not isinstance(output, NodeOutput):
        return None
    return manifest.training_tables.get(output.table or "")


def find_rows(spec: ModelSpec, config: Config, bundle: Bundle, request: RowRequest) -> RowPlan:
    """The requested rows of a model of nodes. Rows of a split see the graph until the time of
    `sampling.temporal.until`, as in the evaluation.

    Raises:
        ConfigError: the model does not predict nodes, or there is no such table or split.
        DataError: an id is not in the graph, or a time cannot be compared with the graph's.
    """
    output, rows, split = spec.output, request.rows, request.split
    if not isinstance(output, NodeOutput):
        remedy = "Leave it out"
        if output.predicted_edges is not None:
            remedy = (
                "Leave it out to predict all edges of the graph, or give predict(pairs) "
                "(source, target) pairs"
            )
        raise ConfigError(
            f"rows are invalid: the model predicts no rows of nodes. {remedy}. [infer-rows-model]"
        )
    if not isinstance(rows, str):
        return RowPlan(read_seed_rows(bundle, output.node_type, request))
    table = find_table(bundle, rows)
    if table.node_type != output.node_type:
        raise ConfigError(
            f"table={rows!r} is invalid: its rows are of {table.node_type!r}, and the model "
            f"predicts {output.node_type!r}. Name a table of that type. [infer-rows-type]"
        )
    if split is None:
        return RowPlan(table)
    if split not in SPLIT_NAMES or rows != output.table:
        raise ConfigError(
            f"split={split!r} is invalid: the splits are {', '.join(SPLIT_NAMES)}, of the table "
            f"that the model was trained on ({output.table}). Set one of them. [infer-rows-split]"
        )
    target = NodeTarget.of(bundle, config, NodeTargetArguments.of(config.task.args), output)
    chosen = table.take(target.splits[split])
    return RowPlan(chosen, as_of=target.end_of_graph(config, split))


def read_rows(uri: str, bundle: Bundle, node_type: str, declared: TrainingTable | None) -> pa.Table:
    """Reads rows from Parquet or CSV files as tables of graphs are read."""
    files = named_files(uri, "--rows")
    rows, kind = read_columns(files, None, "--rows"), bundle.id_map(node_type).kind
    for i, column in enumerate(rows.column_names):
        if kind != "int" and column in _id_names(declared):  # texts of a CSV file may be numbers
            rows = rows.set_column(i, column, read_id_files(files, column, kind, "--rows"))
    return rows


def write_table(table: pa.Table, uri: str | PathLike[str], classes: Sequence[str] = ()) -> None:
    """Writes a table as CSV if its name ends with .csv, otherwise as Parquet. In CSV, probabilities
    become a column for each class, named or numbered, such as `probability_0`, and lists JSON.
    """
    if not str(uri).endswith(".csv"):
        write_parquet(table, str(uri))
        return
    for i, field in reversed(list(enumerate(table.schema))):
        if pa.types.is_fixed_size_list(field.type):
            parts = table.column(i).combine_chunks()
            table = table.remove_column(i)
            for k in reversed(range(field.type.list_size)):
                name = f"{field.name}_{classes[k] if classes else k}"
                table = table.add_column(i, name, pc.list_element(parts, k))
        elif pa.types.is_list(field.type):
            texts = [json.dumps(values) for values in table.column(i).to_pylist()]
            table = table.set_column(i, field.name, pa.array(texts))
    write_bytes(uri, table.to_pandas().to_csv(index=False).encode())


def with_times(table: pa.Table, rows: SeedRows, positions: np.ndarray) -> pa.Table:
    return table if rows.time is None else table.add_column(1, TIME, times_of(rows, positions))


def times_of(rows: SeedRows, positions: np.ndarray) -> pa.Array:
    """Times of rows: timestamps, or plain numbers."""
    assert rows.time is not None
    times = pa.array(np.asarray(rows.time[positions]))
    return times if rows.time_unit is None else times.cast(pa.timestamp(rows.time_unit))


def _id_names(declared: TrainingTable | None) -> list[str]:
    return [ID] if declared is None else list(dict.fromkeys([ID, declared.node]))


def read_seed_rows(bundle: Bundle, node_type: str, request: RowRequest) -> SeedRows:
    """Reads the user's table of ids and times. Raises a DataError or ConfigError as `find_rows`."""
    rows, moment, declared = request.rows, request.moment, request.declared
    declared_time = None if declared is None else declared.time
    if isinstance(rows, pd.DataFrame):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    if not isinstance(rows, Mapping):
        table = pa.table(rows)
        rows = dict(zip(table.column_names, table.columns, strict=True))
    id_names = _id_names(declared)
    time_names = list(dict.fromkeys([TIME, *([declared_time.column] if declared_time else [])]))
    id_columns = [name for name in id_names if name in rows]
    time_columns = [name for name in time_names if name in rows]
    is_unclear = len(id_columns) != 1 or len(time_columns) > 1
    if is_unclear or (moment is not None and not time_columns and len(rows) > 1):
        raise DataError(
            f"rows are invalid: they have the columns {', '.join(rows)}. Name ids "
            f"{' or '.join(id_names)}, and times, if any, {' or '.join(time_names)}. "
            "[infer-rows-columns]"
        )
    nodes = look_up_ids(bundle, node_type, rows[id_columns[0]], "rows")
    if moment is None and time_columns:
        raise ConfigError(
            "rows are invalid: they have times, and the model was trained without "
            f"sampling.temporal. Leave {time_columns[0]} out, or train with it. [infer-rows-unread]"
        )
    times = None
    if moment is not None:
        times = np.full(len(nodes), moment.time)
        if time_columns:
            written = None if declared_time is None else declared_time.format
            times = read_times(rows[time_columns[0]], moment.unit, written)
            if note := note_on_times(times, moment):
                warn(note)
    if times is not None and len(times) != len(nodes):
        raise DataError(
            f"rows are invalid: there are {len(nodes):,} ids and {len(times):,} times. Give each "
            "id a time. [infer-rows-length]"
        )
    unit = None if moment is None else moment.unit
    return SeedRows("rows", node_type, len(nodes), nodes, times, None, unit, {})


def note_on_times(times: np.ndarray, end: AsOf) -> str | None:
    """A sentence if the latest of some times is far beyond the end of the graph."""
    latest = replace(end, time=times.max().item())
    if end.unit is None or latest.time - end.time <= _FAR_US:
        return None
    return (
        f"the latest time of the rows is {latest}, and the graph ends at {end}: nothing after "
        "its end is known. Append newer rows (new_nodes), or check the times."
    )


def read_times(values: Any, unit: str | None, written: DateFormat | None = None) -> np.ndarray:
    words = unit_words(unit)
    try:
        given = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else pa.array(values)
        if unit is not None and is_text_type(given.type):
            texts, (given, is_wrong) = given, parsed_times(given, written)
            if is_wrong.any():
                raise ValueError(f"{texts[int(is_wrong.argmax())].as_py()!r} is not a date")
        if given.null_count:
            raise ValueError(f"row {1 + int(given.is_null().index(True).as_py())} has none")
        is_date = pa.types.is_timestamp(given.type) or pa.types.is_date(given.type)
        is_number = pa.types.is_integer(given.type) or pa.types.is_floating(given.type)
        if not (is_number if unit is None else is_date):
            given = pa.array([parse_time(value, unit) for value in given.to_pylist()])
        elif is_date:
            given = given.cast(pa.timestamp("us"), safe=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"rows are invalid: a time cannot be read ({error}). Give {words}. [infer-rows-times]"
        ) from error
    found = (given.cast(pa.int64()) if pa.types.is_timestamp(given.type) else given).to_numpy()
    return found.astype(np.int64 if found.dtype.kind in "iu" else np.float64)


def link_rows_request(
    spec: ModelSpec, config: Config, bundle: Bundle, request: RowRequest, k: int
) -> TopKRequest:
    """Requests the k best-scored targets of rows of a model of links.

    Label edges are rows if the model was trained on them by time. A table of ids and times needs a
    model of one relation. Errors are those of `find_rows`.
    """
    output = spec.output
    if not isinstance(output, LinkOutput):
        raise ConfigError(
            "top_k is invalid: the model predicts labels. Remove it. [infer-options-clash]"
        )
    anchor_type, target_type = output.ends
    if isinstance(request.rows, str):
        found, relation = _label_rows(config, bundle, output, request)
    else:
        find_score(spec, "decoder", None)
        found, relation = read_seed_rows(bundle, anchor_type, request), 0
    check_k(k, bundle, anchor_type, target_type)
    nodes = found.node_ids(np.arange(found.num_rows))
    return TopKRequest(k, nodes, anchor_type, target_type, (), "decoder", relation, rows=found)


def _label_rows(
    config: Config, bundle: Bundle, output: LinkOutput, request: RowRequest
) -> tuple[SeedRows, int]:
    """Rows of label edges, and the number of their relation."""
    target = LinkTarget.of(bundle, config, LinkTargetArguments.of(config.task.args), output)
    relations = [relation for _, relation, _ in output.edge_types]
    if request.rows not in relations or not target.by_time:
        raise ConfigError(
            f"table={request.rows!r} is invalid: the model was trained on {', '.join(relations)}. "
            "Name label edges with times, of a model with sampling.temporal. [infer-rows-type]"
        )
    number = relations.index(request.rows)
    parts = []
    for name in SPLIT_NAMES if request.split is None else (request.split,):
        edges = target.splits[name]
        chosen = slice(None) if edges.relations is None else edges.relations == number
        parts.append((edges.anchors[chosen], target.times(name)[chosen]))
    nodes, times = (np.concatenate(part) for part in zip(*parts, strict=True))
    unit = time_unit_of(bundle, target.links[0])
    return SeedRows(request.rows, output.ends[0], len(nodes), nodes, times, None, unit, {}), number
