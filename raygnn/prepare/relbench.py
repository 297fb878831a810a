"""Databases in the folder layout of RelBench 3 as graph tables with training tables.

The layout: `manifest.yaml`, `db/TABLE.parquet`, and `tasks/NAME/` with `manifest.yaml` and
train.parquet, val.parquet and test.parquet. Source: RelBench, arXiv:2407.20060.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pandas import Timedelta

from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import join, open_fs, read_text, redact, write_text
from raygnn.data.manifest import MANIFEST_NAME, Manifest
from raygnn.data.splits import SPLIT_NAMES
from raygnn.data.tables.files import write_parquet
from raygnn.data.transforms.values import is_number_type, is_text_type
from raygnn.documents import dump_yaml, parse_yaml
from raygnn.errors import DataError, RuleError
from raygnn.prepare.train_config import write_config

_MOST_REPEATED = 0.5  # texts with a larger share of distinct values are names, not categories
_ROW_ID = "row_id"
#: Keys that the manifests of a database and of tasks need.
_DATABASE = ("tables", "test_timestamp")
_LABELS = ("task_type", "entity_table", "entity_col", "target_col")
_LINKS = ("src_entity_table", "src_entity_col", "dst_entity_table", "dst_entity_col")


def write_relbench(
    folder: str, out: str, tasks: Sequence[str] = (), *, is_frozen: bool = True
) -> list[str]:
    """Writes the graph of a database, with a training table for each task.

    A row of a table is a node, a foreign key an edge type `TABLE__COLUMN__OTHER`. Columns that any
    chosen task must not see (`remove_columns`) are left out; a line names them.

    Args:
        folder: folder of the database; a local path or any fsspec URI.
        tasks: names; empty takes all.
        is_frozen: the database ends at its test time; else each row sees what happened before it.
    Returns:
        A line for each table and task.
    Raises:
        DataError: the folder has another layout, or no such task.
    """
    database = _read_manifest(folder, _DATABASE)
    chosen = {name: _read_manifest(join(folder, "tasks", name)) for name in _tasks(folder, tasks)}
    hidden_by = {name: _hidden(task) for name, task in chosen.items()}
    hidden = set().union(*hidden_by.values())
    uris = {name: join(folder, "db", f"{name}.parquet") for name in database["tables"]}
    # The features of all tables are fitted on rows up to the end of training of every task.
    train = {name: _read(join(folder, "tasks", name, "train.parquet")) for name in chosen}
    last_times = [
        pc.max(train[n].column(t["time_col"])) for n, t in chosen.items() if t.get("time_col")
    ]
    end = min(last_times, key=lambda time: time.as_py(), default=None)
    manifest: dict[str, Any] = {
        "format": "raygnn/graph-v1",
        "node_types": {},
        "edge_types": [],
        "label_edges": [],
        "training_tables": {},
    }
    lines = []
    keys: dict[str, str] = {}
    for name, spec in database["tables"].items():  # one at a time, since all may need much memory
        table, keys[name] = _with_key(_read(uris[name]), spec.get("pkey"))
        files = f"nodes/{name}.parquet"
        write_parquet(table, join(out, files))
        fkeys, time_col = spec.get("fkeys") or {}, spec.get("time_col")
        left_out = {keys[name], time_col, *fkeys}
        left_out |= {column for of, column in hidden if of == name}
        in_training = table
        if time_col and end is not None:
            in_training = table.filter(pc.less_equal(table.column(time_col), end))
        features = [
            {"column": column, "transform": "auto"}
            for column in table.column_names
            if column not in left_out and _is_feature(in_training.column(column))
        ]
        time = {"time": time_col} if time_col else {}
        node = {"files": files, "id": keys[name], **time}
        manifest["node_types"][name] = node | ({"features": {"x": features}} if features else {})
        for column, other in fkeys.items():
            columns = [keys[name], column, *time.values()]
            edges = table.select(columns).filter(pc.is_valid(table.column(column)))
            edges = _known(edges, column, uris[other], database["tables"][other].get("pkey"))
            files = f"edges/{name}__{column}.parquet"
            write_parquet(edges, join(out, files))
            ends = {"source": keys[name], "target": column}
            edge_type = [name, column, other]
            manifest["edge_types"].append({"type": edge_type, "files": files, **ends, **time})
        lines.append(f"{name}: {len(table):,} rows, {len(features)} feature columns")
    for name, task in chosen.items():
        line = _add_task(manifest, folder, out, name, task, train[name])
        others = sorted(".".join(column) for column in hidden - hidden_by[name])
        if others:
            line += f"; --task {name} alone would also read {', '.join(others)}"
        lines.append(line)
    for key in ("label_edges", "training_tables"):
        if not manifest[key]:
            del manifest[key]
    text = dump_yaml(manifest)
    Manifest.parse(text)
    write_text(join(out, MANIFEST_NAME), text)
    ks = {re.sub(r"\W", "_", name): task.get("eval_k") for name, task in chosen.items()}
    _write_config(out, database, manifest, ks, is_frozen=is_frozen)
    return lines


def _add_task(
    manifest: dict[str, Any],
    folder: str,
    out: str,
    name: str,
    task: dict[str, Any],
    train: pa.Table,
) -> str:
    parts = []
    for split in SPLIT_NAMES:
        uri = join(folder, "tasks", name, f"{split}.parquet")
        rows = train if split == "train" else _read(uri)
        parts.append(rows.append_column("split", pa.array([split] * len(rows), pa.string())))
    rows = pa.concat_tables(parts, promote_options="permissive")
    short = re.sub(r"\W", "_", name)
    time = {"time": task["time_col"]} if task.get("time_col") else {}
    if task["task_type"] == "recommendation":
        source, targets = task["src_entity_col"], task["dst_entity_col"]
        rows = _flattened(rows, targets)
        files = f"label_edges/{short}.parquet"
        edge_type = [task["src_entity_table"], short, task["dst_entity_table"]]
        ends = {"source": source, "target": targets}
        entry = {"type": edge_type, "files": files, **ends, **time, "split": "split"}
        manifest["label_edges"].append(entry)
    else:
        files, label = f"training_tables/{short}.parquet", task["target_col"]
        manifest["training_tables"][short] = {
            "files": files,
            "node_type": task["entity_table"],
            "node": task["entity_col"],
            **time,
            "labels": {"y": label},
            "split": "split",
            **_window(task),
        }
    write_parquet(rows, join(out, files))
    return f"{short}: {len(rows):,} rows, {task['task_type'].replace('_', ' ')}"


def _window(task: dict[str, Any]) -> dict[str, str]:
    if not task.get("time_col") or not task.get("timedelta"):
        return {}
    days = Timedelta(task["timedelta"]) / Timedelta(days=1)
    return {"window": f"{days:g}d"}


def _write_config(
    out: str,
    database: dict[str, Any],
    manifest: dict[str, Any],
    ks: dict[str, int | None],
    *,
    is_frozen: bool,
) -> None:
    temporal: dict[str, Any] = {"strategy": "last"}
    if manifest.get("training_tables"):
        task, args = "node_classification", {"table": next(iter(manifest["training_tables"]))}
        about = "# Each test row sees what happened before it."
        if is_frozen:
            temporal = {"until": {"test": str(database["test_timestamp"])}}
            about = (
                "# The database ends at the test time. Without `until`, each test row\n# sees what "
                "happened before it (--protocol live)."
            )
    elif manifest.get("label_edges"):
        task, about = "link_prediction", ""
        edge_type = manifest["label_edges"][0]["type"]
        args = {"edge_type": edge_type_name(edge_type), "labels": True}
        if (k := ks[edge_type[1]]) is not None:
            args["full_ranking"] = [k]
    else:
        return
    write_config(out, task, args, about=about, temporal=temporal, overwrite=True)


def _tasks(folder: str, chosen: Sequence[str]) -> list[str]:
    fs, path = open_fs(join(folder, "tasks"))
    found = []
    if fs.exists(path):
        found = sorted(entry.rstrip("/").rpartition("/")[2] for entry in fs.ls(path, detail=False))
    if unknown := [name for name in chosen if name not in found]:
        raise DataError(
            f"--task={unknown[0]!r} is invalid: {redact(folder)} has the tasks "
            f"{', '.join(found) or 'none'}. Name one of these. [prepare-relbench-task]"
        )
    return list(chosen) or found


def _hidden(task: dict[str, Any]) -> set[tuple[str, str]]:
    hidden = {(table, column) for table, column in task.get("remove_columns") or ()}
    if task.get("kind") == "autocomplete":
        hidden.add((task["entity_table"], task["target_col"]))
    return hidden


def _read_manifest(folder: str, needed: Sequence[str] | None = None) -> dict[str, Any]:
    uri = join(folder, "manifest.yaml")
    try:
        content = parse_yaml(read_text(uri)).value
    except RuleError:
        content = None
    if not isinstance(content, dict):
        raise DataError(
            f"{redact(uri)} is invalid: it is not a manifest of RelBench 3. Name the folder of a "
            "database: manifest.yaml, db and tasks. [prepare-relbench-manifest]"
        )
    if needed is None:
        needed = _LINKS if content.get("task_type") == "recommendation" else _LABELS
    if missing := [key for key in needed if content.get(key) is None]:
        raise DataError(
            f"{redact(uri)} is invalid: it lacks {', '.join(missing)}. Add what RelBench 3 writes "
            "there. [prepare-relbench-manifest]"
        )
    return content


def _read(uri: str, columns: Sequence[str] | None = None) -> pa.Table:
    fs, path = open_fs(uri)
    try:
        with fs.open(path, "rb") as file:
            return pq.read_table(file, columns=columns).replace_schema_metadata()
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{redact(uri)} cannot be read: {error}. Name the folder of a database in the layout "
            "of RelBench 3: manifest.yaml, db and tasks. [prepare-relbench-file]"
        ) from error


def _with_key(table: pa.Table, key: str | None) -> tuple[pa.Table, str]:
    if key is not None:
        return table, key
    name = _ROW_ID
    while name in table.column_names:
        name += "_"
    return table.append_column(name, pa.array(np.arange(len(table)))), name


def _known(edges: pa.Table, column: str, other: str, key: str | None) -> pa.Table:
    """Edges whose target is a row of another table, at a URI."""
    if key is None:
        return edges.slice(0, 0)
    ids = _read(other, [key]).column(key)
    position = edges.column_names.index(column)
    if edges.column(column).type != ids.type:
        edges = edges.set_column(position, column, edges.column(column).cast(ids.type))
    return edges.filter(pc.is_in(edges.column(column), value_set=ids.combine_chunks()))


def _flattened(rows: pa.Table, column: str) -> pa.Table:
    lists = rows.column(column).combine_chunks()
    if not pa.types.is_list(lists.type) and not pa.types.is_large_list(lists.type):
        return rows
    others = rows.drop_columns([column]).take(pc.list_parent_indices(lists))
    return others.append_column(column, pc.list_flatten(lists))


def _is_feature(column: pa.ChunkedArray) -> bool:
    """Whether `transform: auto` can read a column: a number, a time, or a text that repeats."""
    kind = column.type
    if column.null_count == len(column):
        return False
    if is_text_type(kind):
        given = len(column) - column.null_count
        return 1 < len(pc.unique(column)) <= max(_MOST_REPEATED * given, 2)
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return is_number_type(kind) or is_time or pa.types.is_boolean(kind)
