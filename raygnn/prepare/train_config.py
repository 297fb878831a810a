"""Configs to train with, which `raygnn prepare` writes beside graph.yaml."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raygnn.config.loader_section import DEFAULT_FANOUTS, REST
from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import join, open_fs, read_text, write_text
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.manifest import Manifest
from raygnn.documents import dump_yaml, parse_yaml

#: File of the config of a whole graph, in its folder.
CONFIG_NAME = "train.yaml"
_DEEP_FANOUTS = (*DEFAULT_FANOUTS, 5)
_COMMENTS = {
    "on_error: drop": "leaves out rows that cannot be read, and counts them",
    "quantiles: [0.8, 0.9]": "the last tenth of the time is the test",
    "temporal: {}": "reads nothing later than the row that is predicted",
    "fanouts:": "events that could reveal later links are not read",
    "reverse_edges: true": "messages flow both ways",
    "num_workers: 0": "in this process; without this line, workers of Ray train",
}
_OF_THIRD_HOP = {"fanouts:": "a third hop reads only tables that two hops do not reach"}


def write_config(
    folder: str,
    task: str,
    args: dict[str, Any],
    *,
    name: str = CONFIG_NAME,
    about: str = "",
    model: str | None = "Hetero",
    drops: bool = False,
    reverse_edges: bool | None = None,
    splits: dict[str, Any] | None = None,
    temporal: dict[str, Any] | None = None,
    fanouts: dict[str, list[int]] | None = None,
    allow_outside: list[str] | None = None,
    overwrite: bool = False,
) -> tuple[str, bool]:
    """Writes a config that trains on a graph.

    Args:
        folder: of the graph, as the config names it.
        args: of the task.
        about: lines of comments.
        model: None is the default.
        drops: whether bad rows are left out.
        overwrite: replaces an existing file.
    Returns:
        URI of the config, and whether it was written.
    """
    uri = join(folder, name)
    fs, path = open_fs(uri)
    if fs.exists(path) and not overwrite:
        return uri, False
    on_error = "drop" if drops else None
    sampling = {"temporal": temporal, "fanouts": fanouts}
    data = {
        **{"uri": folder, "allow_outside": allow_outside or None, "on_error": on_error},
        **{"reverse_edges": reverse_edges, "splits": splits},
    }
    config = {
        "data": {key: value for key, value in data.items() if value is not None},
        "task": {"type": task, "args": args},
        "model": model,
        "sampling": {key: value for key, value in sampling.items() if value is not None} or None,
        "scaling": {"num_workers": 0},
    }
    content = {key: value for key, value in config.items() if value is not None}
    lines = dump_yaml(content, flow_leaves=True).splitlines()
    comments = _COMMENTS | (_OF_THIRD_HOP if REST in (fanouts or {}) else {})
    for i, line in enumerate(lines):
        notes = [note for text, note in comments.items() if text in line]
        lines[i] = f"{line}  # {notes[0]}" if notes else line
    write_text(uri, "\n".join([*about.splitlines(), *lines, ""]))
    return uri, True


def fanouts_to_all(
    graph: Manifest, node_types: Sequence[str]
) -> tuple[dict[str, list[int]], list[str]]:
    """Fanouts that reach the tables with columns, if the default ones do not.

    A third hop reads only tables that two hops do not reach: with many tables, all edges of a third
    hop would be most of a neighborhood, and lead back to tables that are in it.

    Returns:
        Fanouts by edge type, none if the default ones suffice; and node types that no hop reaches.
    """
    tables = [table.type for table in graph.edge_types]
    reverses = IngestOptions(reverse_edges=reverse_edges_of(graph)).added_reverses(graph.edge_types)
    edge_types = sorted({*tables, *reverses.values()})
    distances = dict.fromkeys(node_types, 0)
    for distance in range(1, len(_DEEP_FANOUTS) + 1):
        near = {node_type for node_type, at in distances.items() if at == distance - 1}
        for source, _, target in edge_types:
            if target in near:
                distances.setdefault(source, distance)
    with_columns = [name for name, table in graph.node_types.items() if table.features]
    deep = {name for name in with_columns if distances.get(name, 0) == len(_DEEP_FANOUTS)}
    fanouts = {REST: [*DEFAULT_FANOUTS, 0]} if deep else {}
    for edge_type in edge_types:
        if edge_type[0] in deep and edge_type[2] in distances:
            fanouts[edge_type_name(edge_type)] = list(_DEEP_FANOUTS)
    return fanouts, [name for name in with_columns if name not in distances]


def reverse_edges_of(graph: Manifest) -> bool | None:
    """`data.reverse_edges` with which both ends of an event of two nodes of one type see it."""
    is_one_way = any(t.directed and t.type[0] == t.type[2] for t in graph.edge_types)
    return True if is_one_way else None


def drops_rows(folder: str) -> bool:
    """Whether the config of a graph leaves out bad rows."""
    uri = join(folder, CONFIG_NAME)
    fs, path = open_fs(uri)
    content = parse_yaml(read_text(uri)).value if fs.exists(path) else None
    data = content.get("data") if isinstance(content, dict) else None
    return isinstance(data, dict) and data.get("on_error") == "drop"
