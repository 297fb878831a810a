"""Drafts `graph.yaml` and a config from a folder of tables, to be edited.

A draft reads the tables, profiles their columns, finds references, chooses roles and a task, and
writes. Files that ingest would refuse are repaired in copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import join, open_fs, read_text, redact, write_text
from raygnn.data.manifest import EdgeTable, Manifest, NodeTable, TrainingTable, manifest_uri
from raygnn.data.tables.files import list_files, unread_files, write_parquet
from raygnn.errors import ConfigError, DataError
from raygnn.prepare.drafts import references, roles
from raygnn.prepare.drafts.catalog import declare, read_database, read_schema
from raygnn.prepare.drafts.hindsight import find_hindsight, find_repeated_links, find_untimed_links
from raygnn.prepare.drafts.manifest_text import label_name, manifest_lines
from raygnn.prepare.drafts.raw_tables import (
    DRAFTED,
    Reference,
    Table,
    find_tables,
    list_unread,
    read_table,
)
from raygnn.prepare.train_config import fanouts_to_all, reverse_edges_of, write_config
from raygnn.prepare.write_labels import with_labels, written_labels
from raygnn.runtime.sources import places_outside

_ABOUT = """\
# A draft: docs/config-reference.md has every key.
# To predict something else, draft again with --overwrite --task TABLE.COLUMN, which
# changes graph.yaml too. By hand, change the labels there and the task here.
"""
_MOST_SHOWN = 8  # columns of numbers that are no references


class Draft(NamedTuple):
    """A draft.

    Attributes:
        text: YAML of the manifest.
        notes: a line for each decision to check.
        made: tables to write, by file.
        picture: lines that show tables, references and the task.
        num_references: 0 if the tables do not form a graph.
        written: URIs of the written files, the manifest's first.
        config: URI of the config to train with, possibly an existing one; None without edges.
    """

    text: str
    notes: list[str]
    made: dict[str, pa.Table]
    picture: list[str]
    task: roles.Task
    num_references: int
    written: Sequence[str] = ()
    config: str | None = None


def draft(
    folder: str,
    refs: Sequence[str] = (),
    task: str | None = None,
    encoding: str | None = None,
    old: Manifest | None = None,
    database: str | None = None,
    schema: str | None = None,
) -> Draft:
    """Drafts the manifest of a folder, and writes nothing.

    Args:
        folder: contains Parquet and CSV tables, each a file or a folder of files. Any fsspec URI.
        database: URL of a database with the tables. The references that it declares are taken.
        schema: path or URI of a file of SQL whose CREATE TABLE statements declare keys.
        refs: corrections of references: `ratings.movie_id=movies.id`, `ratings.stars=none`.
        task: `TABLE.COLUMN` to predict, or a table of links to predict.
        encoding: encoding of text files that are not UTF-8; None detects it.
        old: a graph.yaml of the folder; its labels of `prepare labels` are kept.
    Raises:
        DataError: there are no tables, none can be nodes, or one is unreadable.
        ConfigError: `refs` or `task` name unknown tables or columns.
    """
    labels = {} if old is None else written_labels(old)
    files_of_labels = {entry["files"] for entries in labels.values() for _, entry in entries}
    declared: list[str] = []
    if database is None:
        found = find_tables(folder, without=files_of_labels)
        tables = [read_table(name, files, uris, encoding) for name, files, uris in found]
    else:
        tables, declared = read_database(database)
    tables = [table for table in tables if table.columns]
    if schema is not None:
        declared = declare(tables, read_schema(read_text(schema)))
        if not declared:
            raise ConfigError(
                f"--schema={redact(schema)!r} is invalid: it declares no foreign key between these "
                f"tables: {', '.join(table.name for table in tables)}. Names of tables are those "
                "of files and folders. [prepare-schema]"
            )
    if not tables:
        what = "it contains no Parquet, CSV or TSV files. Name the folder of the tables"
        what = what if database is None else f"{redact(database)} has no table that you may read"
        raise DataError(f"folder {redact(folder)!r} is invalid: {what}. [prepare-no-tables]")
    overrides = references.parse_overrides([*declared, *refs], tables)
    references.find_references(tables, overrides)
    made = references.list_missing_nodes(tables, overrides)
    references.spell_references(tables)
    references.read_as_numbers(tables)
    roles.choose_roles(tables)
    chosen = roles.choose_task(tables, task, redact(folder))
    find_hindsight(tables, chosen)
    roles.show_columns(tables, chosen)
    find_untimed_links(tables)
    chosen = replace(chosen, repeated_in=find_repeated_links(tables, chosen))
    made |= roles.write_gapless_edges(tables)
    for table in tables:
        if table.repairs:
            table.source, table.pattern = table.pattern, f"{DRAFTED}/{table.name}.parquet"
            made[table.pattern] = pa.table({c.name: c.values for c in table.columns.values()})
    if all(table.key is None for table in tables):
        names = ", ".join(table.name for table in tables)
        raise DataError(
            f"folder {redact(folder)!r} is invalid: no table has a column of unique ids, and none "
            f"refers to another ({names}). Write graph.yaml by hand. [prepare-no-nodes]"
        )
    text = with_labels("".join(manifest_lines(tables, chosen)), labels)
    lines = [*_picture(tables), f"task: {chosen.description}"]
    if database is None and (others := list_unread(folder)):
        lines.insert(0, f"not read: {', '.join(others)} (tables are .parquet, .csv or .tsv files)")
    num_references = sum(len(table.references) for table in tables)
    return Draft(text, list(_notes(text)), made, lines, chosen, num_references)


def write_draft(folder: str, overwrite: bool = False, **options: Any) -> Draft:
    """Writes the draft, a config to train with, and repaired tables into the folder.

    Args:
        overwrite: replaces an existing manifest and config. Otherwise a config is kept.
        options: of `draft`.
    Raises:
        DataError: as `draft`, or a graph.yaml exists and may not be replaced.
    """
    uri = manifest_uri(folder)
    fs, path = open_fs(uri)
    old = None
    if fs.exists(path) and overwrite:
        with suppress(DataError):
            old = Manifest.load(uri)
    elif fs.exists(path):
        raise DataError(
            f"folder {redact(folder)!r} is invalid: it has a graph.yaml already. Train on it, or "
            "replace it with --overwrite. [prepare-graph-exists]"
        )
    found = draft(folder, old=old, **options)
    for name, table in found.made.items():
        write_parquet(table, join(folder, name))
    if old is not None:
        with suppress(DataError):  # files are missing that the draft does not write anymore
            found.picture.extend(_new_files(folder, old))
    write_text(uri, found.text)
    given = _config_of(Manifest.parse(found.text), found.task)
    if given is None:
        return found._replace(written=[uri])
    if unreached := given.pop("unreached"):
        found.picture.append(f"no hop of the model reaches {', '.join(unreached)}")
    drops = any("data.on_error: drop" in note for note in found.notes)
    config, is_new = write_config(
        folder,
        **given,
        about=_ABOUT,
        drops=drops,
        allow_outside=places_outside(uri),
        overwrite=overwrite,
    )
    return found._replace(written=[uri, config] if is_new else [uri], config=config)


def repair_tables(folder: str, **options: Any) -> tuple[list[str], list[str]]:
    """Writes the repaired tables that a graph.yaml reads again, from tables that have changed.

    Args:
        options: of `draft`, as they were for this graph.yaml.
    Returns:
        URIs of the written files, and a line for each file that graph.yaml does not read.
    Raises:
        DataError: as `draft`, there is no graph.yaml, or it reads a file that the draft would not
            write.
    """
    graph = Manifest.load(folder)
    found = draft(folder, old=graph, **options)
    tables: list[NodeTable | EdgeTable | TrainingTable] = [
        *graph.node_types.values(),
        *graph.edge_types,
        *graph.training_tables.values(),
    ]
    files = dict.fromkeys(name for table in tables for name in table.files)
    names = [name for name in files if name.startswith(f"{DRAFTED}/")]
    for name in names:
        if name not in found.made:
            raise DataError(
                f"folder {redact(folder)!r} is invalid: graph.yaml reads {name}, which a draft of "
                "its tables does not write. Repeat the options --ref, --task and --encoding of the "
                "draft, or draft again with --overwrite. [prepare-repair]"
            )
    for name in names:
        write_parquet(found.made[name], join(folder, name))
    return [join(folder, name) for name in names], list(_new_files(folder, graph))


def _new_files(folder: str, graph: Manifest) -> Iterator[str]:
    """Lines about files that look like more rows of a table of graph.yaml, which does not read
    them.
    """
    return unread_files(
        folder,
        {
            file.name
            for table in graph.all_tables.values()
            for file in list_files(folder, table.files, "files", None, table.csv)
        },
    )


def _picture(tables: Sequence[Table]) -> Iterator[str]:
    keys = {table.name: table.key for table in tables}
    for table in tables:
        role = "nodes" if table.key is not None else "left out"
        role = (
            "edges"
            if roles.is_edges(table)
            else "training rows"
            if roles.is_training_rows(table)
            else role
        )
        key = f", id {table.key}" if table.key is not None else ""
        yield f"{table.name} ({table.num_rows:,} rows): {role}{key}"
        for ref in table.references.values():
            yield f"{_arrow(table, ref, keys)} of rows ({ref.why})"
    rejected = [(table, ref) for table in tables if roles.is_used(table) for ref in table.rejected]
    if rejected:
        yield "not references (--ref TABLE.COLUMN=TABLE.COLUMN makes one):"
    yield from (
        f"{_arrow(table, ref, keys)}: {ref.why}"
        for table, ref in rejected
        if ref.why != references.COINCIDENCE
    )
    if numbers := [
        f"{table.name}.{ref.column}" for table, ref in rejected if ref.why == references.COINCIDENCE
    ]:
        more = f" and {len(numbers) - _MOST_SHOWN} more" if len(numbers) > _MOST_SHOWN else ""
        yield f"  {', '.join(numbers[:_MOST_SHOWN])}{more}: {references.COINCIDENCE}"


def _arrow(table: Table, ref: Reference, keys: Mapping[str, str | None]) -> str:
    rate = int(ref.rate * 1e4) / 100  # rounded down: 100 % means that no row is unknown
    return f"  {table.name}.{ref.column} -> {ref.table}.{keys[ref.table]}, {rate:g} %"


def _notes(text: str) -> Iterator[str]:
    place = ""
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("# ? "):
            yield f"{place}{words.removeprefix('# ? ')}"
        elif re.match(r"  \S", line):
            place = f"{words.removeprefix('- type:').rstrip(':').strip()}: "


def _config_of(graph: Manifest, task: roles.Task) -> dict[str, Any] | None:
    """Arguments of `write_config`; None for a graph without edges, on which nothing can train."""
    if not graph.edge_types or task.table is None:
        return None
    rows: NodeTable | EdgeTable | TrainingTable
    ends: tuple[str, ...] = ()
    name, kind = task.table, "node_classification"
    if name in graph.training_tables:
        rows, args = graph.training_tables[name], {"table": name}
    elif name in graph.node_types and task.column is not None:
        rows, args = graph.node_types[name], {"target": name}
    else:
        rows = next(
            table
            for table in graph.edge_types
            if (table.type[1] == name and task.reference is None)
            or (table.type[0] == name and table.target == task.reference)
        )
        kind, args = "link_prediction", {"edge_type": edge_type_name(rows.type)}
        ends = rows.type[::2]
        if task.column is not None:
            kind, args = "edge_prediction", {**args, "label": label_name(task.column)}
    splits: dict[str, Any] = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
    is_timed = rows.time is not None and task.is_event
    if is_timed:
        splits = {"type": "temporal", "quantiles": [0.8, 0.9]}
    reverse_edges = reverse_edges_of(graph)
    is_plain = len(graph.node_types) == 1 == len(graph.edge_types) and not reverse_edges
    has_features = all(table.features for table in graph.node_types.values())
    # The taste of people is best read from all of their earlier links.
    is_liking = kind == "link_prediction" and is_timed and len({*ends}) == 2
    is_default = name in graph.training_tables or kind == "edge_prediction" or is_liking
    fanouts: dict[str, list[int]] = {}
    unreached: list[str] = []
    for table in graph.edge_types:
        source, relation, target = table.type
        if {source, relation} & {*task.repeated_in}:
            fanouts[edge_type_name(table.type)] = [0, 0]
            fanouts[edge_type_name((target, f"rev_{relation}", source))] = [0, 0]
    for table in graph.edge_types if is_liking else ():
        source, relation, target = table.type
        is_event = table.time is not None and table is not rows
        if is_event or (source not in ends and graph.node_types[source].time is not None):
            fanouts[edge_type_name(table.type)] = [0, 0]
        if is_event:
            fanouts[edge_type_name((target, f"rev_{relation}", source))] = [0, 0]
    if kind != "link_prediction":
        of = (rows.node_type,) if isinstance(rows, TrainingTable) else ends or (name,)
        fanouts, unreached = fanouts_to_all(graph, of)
    return {
        "task": kind,
        "args": args,
        "model": None if is_plain and has_features else "Hetero",
        "reverse_edges": reverse_edges,
        "splits": None if rows.split else splits,
        "temporal": {} if is_timed and not is_default else None,
        "fanouts": fanouts or None,
        "unreached": unreached,
    }
