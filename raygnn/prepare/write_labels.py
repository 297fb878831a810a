"""Writes the rows of a label query, and declares them in graph.yaml and in a config."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import absolute, join, read_text, write_text
from raygnn.data.manifest import Manifest, check_type_name, manifest_folder, manifest_uri
from raygnn.data.tables.files import write_parquet
from raygnn.documents import dump_yaml, parse_yaml
from raygnn.errors import ConfigError, DataError, RuleError
from raygnn.prepare.column_labels import column_rows, without_features
from raygnn.prepare.label_query import TARGET, LabelQuery, longest
from raygnn.prepare.labels import LabelRows, LabelTables, LabelTimes, RowColumns, window_rows
from raygnn.prepare.train_config import fanouts_to_all, reverse_edges_of, write_config
from raygnn.runtime.sources import places_outside


@dataclass(frozen=True)
class Labels:
    """A written table.

    Attributes:
        lines: the rows and times of each split.
        config: URI of a config that trains on the rows.
    """

    kind: str
    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    config: str


def write_labels(
    graph: str,
    query: LabelQuery,
    times: LabelTimes | None,
    name: str,
    drops: bool = False,
    overwrite: bool = False,
    allow_outside: Sequence[str] = (),
) -> Labels:
    """Runs a query, writes its rows as a training table or as label edges, and declares them.

    Args:
        graph: folder of the graph; a local path or any fsspec URI.
        times: None asks for a column, which is taken out of the features.
        name: of the training table, or of the relation of the links.
        drops: leaves out rows of entities that the graph lacks.
        overwrite: replaces a table with this name.
        allow_outside: folders besides the graph's that its files may be in.
    Raises:
        ConfigError: times or names are invalid.
        DataError: the query fails, breaks a rule, or makes no rows for a split.
    """
    manifest = _load(graph, name, overwrite)
    how: dict[str, Any] = {"drops": drops, "overwrite": overwrite}
    with LabelTables(graph, query, drops, allow_outside) as tables:
        if times is None:
            made = column_rows(tables, manifest, query)
            how["splits"] = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
        else:
            made = window_rows(tables, manifest, query, times, name)
    _declare(graph, manifest, name, query, made)
    config, more = _write_config(graph, made.manifest, name, made.columns, allow_outside, **how)
    kind = "training table" if made.columns.target is None else "label edges"
    return Labels(kind, (*made.lines, *more), made.warnings, config)


def _load(graph: str, name: str, overwrite: bool) -> Manifest:
    """The manifest. Raises a ConfigError if no table can have the name, or one has it that may not
    be replaced.
    """
    try:
        check_type_name(name)
    except RuleError as error:
        rule, remedy = error.problem.rule, error.problem.remedy
        raise ConfigError(
            f"--name={name!r} is invalid: {rule}. {remedy}.", id=error.problem.id
        ) from None
    manifest = Manifest.load(graph)
    declared = {*manifest.training_tables, *(table.type[1] for table in manifest.label_edges)}
    if name in declared and not overwrite:
        raise ConfigError(
            f"--name={name!r} is invalid: graph.yaml has labels of this name. Choose another name, "
            "or replace them with --overwrite. [labels-name-taken]"
        )
    return manifest


def _write_config(
    graph: str,
    manifest: Manifest,
    name: str,
    columns: RowColumns,
    allow_outside: Sequence[str],
    **how: Any,
) -> tuple[str, list[str]]:
    """Writes a config that learns labels, with further options of `write_config`.

    Returns:
        URI of the config, and lines to print.
    """
    how |= {"name": f"{name}.yaml", "reverse_edges": reverse_edges_of(manifest)}
    how["allow_outside"] = [*places_outside(graph), *map(absolute, allow_outside)]
    task, args, lines = "node_classification", dict[str, Any](table=name), list[str]()
    if columns.target is None:
        fanouts, far = fanouts_to_all(manifest, [columns.node_type])
        how["fanouts"] = fanouts or None
        if far:
            lines.append(f"no hop reaches {', '.join(far)} from {columns.node_type}")
    else:
        edge_type = edge_type_name((columns.node_type, name, columns.target_type or ""))
        task, args = "link_prediction", {"edge_type": edge_type, "labels": True}
        how["temporal"] = {"strategy": "last"}
    config, _ = write_config(manifest_folder(graph), task, args, **how)
    return config, lines


def _declare(graph: str, manifest: Manifest, name: str, query: LabelQuery, made: LabelRows) -> None:
    """Writes rows into a file, and their entry into graph.yaml, whose features lose the label."""
    columns = made.columns
    common = {"time": columns.time, "split": "split"} if columns.time is not None else {}
    entry: dict[str, Any]
    if columns.target is None:
        section, files = "training_tables", f"training_tables/{name}.parquet"
        labels: dict[str, Any] = {"y": [*columns.joined]}
        if not columns.joined:
            labels = {"y" if len(columns.labels) == 1 else label: label for label in columns.labels}
        entry = {"files": files, "node_type": columns.node_type, "node": columns.node}
        weight = {} if columns.weight is None else {"weight": columns.weight}
        entry |= {"labels": labels, **weight, **common}
        entry |= {"window": longest(query.window)} if query.window else {}
    else:
        section, files = "label_edges", f"label_edges/{name}.parquet"
        entry = {"type": [columns.node_type, name, columns.target_type], "files": files}
        entry |= {"source": columns.node, "target": TARGET, **common}
    content = made.manifest.model_dump(mode="json")
    if section == "training_tables":
        content[section][name] = entry
    else:
        others = [table for table in content[section] if table["type"] != entry["type"]]
        content[section] = [entry, *others]  # as in the text
    expected = Manifest.model_validate(content)
    write_parquet(made.rows, join(manifest_folder(graph), files))
    if expected == manifest:
        return
    uri = manifest_uri(graph)
    text = _with_entry(without_features(read_text(uri), query.answers), section, name, entry)
    try:
        is_right = Manifest.parse(text) == expected
    except DataError:
        is_right = False
    write_text(uri, text if is_right else expected.dump())  # graph.yaml may be in another style


def written_labels(manifest: Manifest) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Names and entries of the tables in a graph.yaml that label queries wrote, by section."""
    content = parse_yaml(manifest.dump()).value
    tables = content.get("training_tables", {}).items()
    links = [(entry["type"][1], entry) for entry in content.get("label_edges", [])]
    found = {"training_tables": [*tables], "label_edges": links}
    return {
        section: [(name, e) for name, e in entries if e.get("files") == f"{section}/{name}.parquet"]
        for section, entries in found.items()
    }


def with_labels(text: str, labels: Mapping[str, Sequence[tuple[str, dict[str, Any]]]]) -> str:
    """A graph.yaml with the tables of `written_labels` whose node types it has."""
    for section, entries in labels.items():
        for name, entry in entries:
            added = _with_entry(text, section, name, entry)
            with suppress(DataError):
                Manifest.parse(added)
                text = added
    return text


def _with_entry(text: str, section: str, name: str, entry: dict[str, Any]) -> str:
    """A graph.yaml with an entry, instead of one of this name; all other lines stay."""
    block = dump_yaml({name: entry} if section == "training_tables" else [entry])
    lines = ["  " + line for line in block.rstrip().splitlines()]
    text = _without_entry(text, section, name)
    found = re.search(rf"^{section}:[ \t]*(#.*)?$", text, re.MULTILINE)
    if found is None:
        return "\n".join([text.rstrip(), f"{section}:", *lines, ""])
    rest = text[found.end() :].splitlines()
    indent = next((re.match(r" *", line)[0] for line in rest if line.strip()), "  ")  # type: ignore[index]
    lines = [indent + line[2:] for line in lines]
    return text[: found.end()] + "\n" + "\n".join(lines) + text[found.end() :]


def _without_entry(text: str, section: str, name: str) -> str:
    """A graph.yaml without the lines of an entry in block style, if there is one."""
    lines = text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(f"{section}:")]
    if not starts:
        return text
    first = starts[0] + 1
    ends = (i for i in range(first, len(lines)) if re.match(r"[^\s#-]", lines[i]))
    end = next(ends, len(lines))
    indent = next((re.match(r" *", line)[0] for line in lines[first:end] if line.strip()), "")  # type: ignore[index]
    items = [i for i in range(first, end) if re.match(rf"{indent}[^\s#]", lines[i])]
    for item, after in zip(items, [*items[1:], end], strict=True):
        block = textwrap.dedent("".join(lines[item:after]))
        content = parse_yaml(block).value
        if isinstance(content, list):  # of label edges
            content = {content[0]["type"][1]: content[0]}
        if name in content:
            del lines[item:after]
            break
    return "".join(lines)
