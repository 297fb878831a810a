"""Drafts `graph.yaml` and a config from a folder of tables, to be edited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.data.convert.drafts.manifest_text import manifest_lines
from raygnn.data.convert.drafts.raw_tables import find_tables, read_table
from raygnn.data.convert.drafts.references import (
    edges_without_gaps,
    find_references,
    keep_keys_of_nodes,
    own_key,
    referred_key,
    rewritten_tables,
    tables_of_missing_nodes,
)
from raygnn.data.convert.drafts.train_config import CONFIG_NAME, train_config
from raygnn.data.filesystem import join, open_fs, redact, write_text
from raygnn.data.manifest import Manifest, manifest_uri
from raygnn.errors import DataError


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
            f"folder {redact(folder)!r} is invalid: it holds no Parquet, CSV or TSV files. Name "
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
    """What was drafted.

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
        path = open_fs(join(folder, name))[1]
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with fs.open(path, "wb") as file:
            pq.write_table(table, file)
    write_text(uri, text)
    drops = any("data.on_error: drop" in note for note in notes)
    config = train_config(Manifest.parse(text), folder, drops=drops)
    if config is None:
        return Draft([uri], None, notes)
    if fs.exists(open_fs(config_uri)[1]) and not overwrite:
        return Draft([uri], config_uri, notes)
    write_text(config_uri, config)
    return Draft([uri, config_uri], config_uri, notes)


def _notes(text: str) -> Iterator[str]:
    """The lines with a question mark, each behind the type that it is of."""
    place = ""
    for line in text.splitlines():
        words = line.strip()
        if words.startswith("# ? "):
            yield f"{place}{words.removeprefix('# ? ')}"
        elif re.match(r"  \S", line):
            place = f"{words.removeprefix('- type:').rstrip(':').strip()}: "
