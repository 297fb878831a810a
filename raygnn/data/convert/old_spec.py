"""`prepare csv --spec`, replaced by graph.yaml: shows the graph.yaml equivalent to a spec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raygnn.config.documents import dump_yaml, parse_yaml
from raygnn.data.manifest import FORMAT
from raygnn.errors import ConfigError, DataError, RuleError

_CSV_KEYS = ("separator", "header", "skip_lines")
_REMOVED = {
    *("count", "first_id", "count_line", "add", "offset", "first", "last"),
    *("more", "add_unlisted", "normalize_features", "prefix"),
}


def spec_error(text: str, name: str) -> ConfigError:
    """The error for a spec, with its graph.yaml. Raises a DataError unless the spec is YAML."""
    try:
        spec = parse_yaml(text).value
    except RuleError as error:
        raise DataError(error.text(name, "the file")) from None
    spec = spec if isinstance(spec, dict) else {}
    removed = sorted(_REMOVED.intersection(_keys(spec)))
    lacks = (
        f" It has no {', '.join(removed)}: write those tables yourself, as "
        "examples/lastfm/prepare.py does."
        if removed
        else ""
    )
    return ConfigError(
        f"--spec={name!r} is invalid: graph.yaml describes tables of any form.\n\n"
        f"{dump_yaml(_graph(spec), flow_leaves=True)}\nWrite this graph.yaml beside the "
        f"tables.{lacks}",
        id="prepare-spec-removed",
    )


def _graph(spec: dict[str, Any]) -> dict[str, Any]:
    groups: dict[str, Any] = {"format": FORMAT}
    nodes = spec.get("node_types")
    if isinstance(nodes, dict):
        groups["node_types"] = {name: _table(table, spec) for name, table in nodes.items()}
    for group in ("edge_types", "label_edges"):
        if isinstance(tables := spec.get(group), list):
            groups[group] = [_table(table, spec) for table in tables]
    return groups


def _table(table: Any, spec: dict[str, Any]) -> dict[str, Any]:
    table = table if isinstance(table, dict) else {}
    files = table.get("files", [])
    entries = files if isinstance(files, list) else [files]
    levels = [spec, table, *(entry for entry in entries if isinstance(entry, dict))]
    csv = {key: level[key] for level in levels for key in _CSV_KEYS if key in level}
    skipped = csv.get("skip_lines", 0)
    if any(level.get("count_line") is True for level in levels) and isinstance(skipped, int):
        csv["skip_lines"] = skipped + 1
    patterns = [entry.get("files") if isinstance(entry, dict) else entry for entry in entries]
    columns = {key: value for key, value in table.items() if key not in (*_CSV_KEYS, *_REMOVED)}
    return columns | {"files": patterns} | ({"csv": csv} if csv else {})


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _keys(inner)
