"""Drafts `graph.yaml` and a config from a folder of tables, to be edited."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from raygnn.config.documents import dump_yaml
from raygnn.data.convert.drafts.manifest_text import manifest_lines
from raygnn.data.convert.drafts.raw_tables import find_tables, read_table
from raygnn.data.convert.drafts.references import (
    DRAFTED,
    edges_without_gaps,
    find_references,
    keep_keys_of_nodes,
    own_key,
    referred_key,
    rewritten_tables,
    tables_of_missing_nodes,
)
from raygnn.data.edge_types import edge_type_name
from raygnn.data.filesystem import join, open_fs, redact, write_text
from raygnn.data.manifest import EdgeTable, Manifest, manifest_uri
from raygnn.data.tables.files import write_parquet
from raygnn.errors import DataError

#: File of the config, in the folder of the graph.
CONFIG_NAME = "train.yaml"


def draft(folder: str) -> tuple[str, list[str], dict[str, pa.Table]]:
    """Drafts the manifest of a folder.

    Args:
        folder: with Parquet and CSV tables, each a file or a folder of files. Any fsspec URI.
    Returns:
        The YAML text; a line for each thing that is worth a look; and tables of ids that have none,
        by the name of the Parquet file that the text expects.
    Raises:
        DataError: there are no tables, none of them can be nodes, or one cannot be read.
    """
    tables = [read_table(name, pattern, uris) for name, pattern, uris in find_tables(folder)]
    if not tables:
        raise DataError(
            f"folder {redact(folder)!r} is invalid: it contains no Parquet, CSV or TSV files. Name "
            "the folder of the tables.",
            id="prepare-no-tables",
        )
    for table in tables:
        table.key = own_key(table, tables)
    for table in tables:
        table.key = table.key or referred_key(table, tables)
    for table in tables:
        find_references(table, tables)
    keep_keys_of_nodes(tables)
    made = {
        **tables_of_missing_nodes(tables),
        **rewritten_tables(tables),
        **edges_without_gaps(tables),
    }
    nodes = [table for table in tables if table.key is not None]
    if not nodes:
        names = ", ".join(table.name for table in tables)
        raise DataError(
            f"folder {redact(folder)!r} is invalid: no table of it has a column of ids that are "
            f"there once, and none refers to another ({names}). Write graph.yaml by hand: "
            "docs/graph-format.md.",
            id="prepare-no-nodes",
        )
    if not any(table.references for table in tables):
        nodes[0].unsure.append(
            "no column refers to another table or row: there are no edges, which training needs"
        )
    text = "".join(manifest_lines(tables))
    return text, list(_notes(text)), made


class Draft(NamedTuple):
    """The drafted files.

    Attributes:
        written: URIs of the files that were written, the manifest's first.
        config: URI of the config to train with, which may have been there; None without edges.
        notes: a line for each thing that is worth a look.
    """

    written: list[str]
    config: str | None
    notes: list[str]


def write_draft(folder: str, overwrite: bool = False) -> Draft:
    """Writes the draft, a config to train with, and tables of ids that have none into the folder.

    Args:
        overwrite: replaces a manifest and a config that are there; else a config is kept.
    Raises:
        DataError: as `draft`; or there is a graph.yaml, and it is not to be replaced.
    """
    uri, config_uri = manifest_uri(folder), join(folder, CONFIG_NAME)
    fs, path = open_fs(uri)
    if fs.exists(path) and not overwrite:
        raise DataError(
            f"folder {redact(folder)!r} is invalid: it has a graph.yaml already. Train on it, or "
            "replace it with --overwrite.",
            id="prepare-graph-exists",
        )
    text, notes, made = draft(folder)
    for name, table in made.items():
        write_parquet(table, join(folder, name))
    write_text(uri, text)
    drops = any("data.on_error: drop" in note for note in notes)
    config = _train_config(Manifest.parse(text), folder, drops=drops)
    if config is None:
        return Draft([uri], None, notes)
    if fs.exists(open_fs(config_uri)[1]) and not overwrite:
        return Draft([uri], config_uri, notes)
    write_text(config_uri, config)
    return Draft([uri, config_uri], config_uri, notes)


def _notes(text: str) -> Iterator[str]:
    """The lines with a question mark, each after its node or edge type."""
    place = ""
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("# ? "):
            yield f"{place}{words.removeprefix('# ? ')}"
        elif re.match(r"  \S", line):
            place = f"{words.removeprefix('- type:').rstrip(':').strip()}: "


def _train_config(graph: Manifest, folder: str, *, drops: bool) -> str | None:
    """A config that trains on a drafted graph as it is: on its first labels, else on its links.

    Args:
        folder: of the graph, as the config names it.
        drops: whether rows have to be left out.
    Returns:
        YAML; None of a graph without edges, on which nothing can be trained.
    """
    if not graph.edge_types:
        return None
    by_hash = "{type: hash, fractions: [0.8, 0.1, 0.1]}"
    labelled = next((item for item in graph.node_types.items() if item[1].labels), None)
    sampling = None
    if labelled is not None:
        name, nodes = labelled
        task = f"{{type: node_classification, args: {{target: {name}}}}}"
        splits = None if nodes.split else by_hash
    else:
        links = _links(graph)
        splits = None if links.split else by_hash
        if links.time and splits:
            splits = (
                "{type: temporal, quantiles: [0.8, 0.9]}  # the last tenth of the time is the test"
            )
            sampling = "{temporal: {}}  # a link is predicted from earlier ones only"
        task = f"{{type: link_prediction, args: {{edge_type: {edge_type_name(links.type)}}}}}"
    is_plain = len(graph.node_types) == 1 == len(graph.edge_types)
    has_features = all(table.features for table in graph.node_types.values())
    given = {
        "data": "",
        "  uri": dump_yaml(folder).removesuffix("...\n").strip(),
        "  on_error": "drop  # leaves out the rows that graph.yaml counts" if drops else None,
        "  splits": splits,
        "task": task,
        "model": None if is_plain and has_features else "Hetero",
        "sampling": sampling,
        "scaling": "{num_workers: 0}  # in this process; without this line, workers of Ray train",
    }
    lines = [f"{key}: {text}".rstrip() for key, text in given.items() if text is not None]
    return "\n".join(["# A draft: docs/config-reference.md has every key.", *lines, ""])


def _links(graph: Manifest) -> EdgeTable:
    """Edges to predict: from a table of their own, and with times if possible."""
    of_nodes = {table.files for table in graph.node_types.values()}
    own = [
        table
        for table in graph.edge_types
        if table.files not in of_nodes and not table.files[0].startswith(f"{DRAFTED}/")
    ]
    timed = [table for table in own if table.time]
    sources = Counter(table.type[0] for table in graph.edge_types)
    # What refers most is what happens: shipments rather than drivers.
    busiest = max(graph.edge_types, key=lambda table: sources[table.type[0]])
    return next(iter([*timed, *own, busiest]))
