"""Graph tables with rows appended: new nodes, and their edges, behind those of a graph."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raygnn.data.cache import build_once, cache_folder
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import absolute, join, write_text
from raygnn.data.manifest import MANIFEST_NAME, Manifest, manifest_folder
from raygnn.errors import DataError


@dataclass(frozen=True)
class AppendedTables:
    """The tables of a graph and of what was appended to it.

    Attributes:
        uri: folder with a `graph.yaml` that names the files of both.
        roots: the folders that it names files of, outside of its own.
        new_nodes: files of the new nodes and the column of ids, by node type.
    """

    uri: str
    roots: tuple[str, ...]
    new_nodes: dict[str, tuple[tuple[str, ...], str]]


def append_tables(
    graph: str | os.PathLike[str],
    new: str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None = None,
    allow_outside: Sequence[str] = (),
) -> AppendedTables:
    """Writes a manifest of a graph with the rows of other tables behind its own.

    Columns are read as the graph's manifest says; of the other one only the types and their files
    are. Labels and splits are left out, which new rows need not have.

    Args:
        graph, new: a folder with `graph.yaml`, or that file; a local path or any fsspec URI.
        cache_dir: where the manifest is written, as of `ingest`.
        allow_outside: see `IngestOptions`.
    Raises:
        DataError: a manifest is wrong, or the new one has types that the graph lacks, or no nodes.
    """
    base, added = (Manifest.load(uri, allow_outside) for uri in (graph, new))
    _check_types(base, added)
    folders = [absolute(manifest_folder(uri)) for uri in (graph, new)]

    def located(folder: str, files: Sequence[str]) -> tuple[str, ...]:
        return tuple(join(folder, pattern) for pattern in files)

    new_nodes = {
        name: (located(folders[1], table.files), base.node_types[name].id)
        for name, table in added.node_types.items()
    }
    new_edges = {table.type: located(folders[1], table.files) for table in added.edge_types}
    nodes = {
        name: table.model_copy(
            update={
                "files": (*located(folders[0], table.files), *new_nodes.get(name, ((), ""))[0]),
                "labels": {},
                "split": None,
            }
        )
        for name, table in base.node_types.items()
    }
    edges = [
        table.model_copy(
            update={
                "files": (*located(folders[0], table.files), *new_edges.get(table.type, ())),
                "split": None,
            }
        )
        for table in base.edge_types
    ]
    text = Manifest(node_types=nodes, edge_types=edges).dump()
    place = cache_folder(cache_dir, "appended") / hashlib.sha256(text.encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        write_text(str(folder / MANIFEST_NAME), text)

    folder = build_once(place, build, "the list of tables")
    return AppendedTables(str(folder), (*folders, *allow_outside), new_nodes)


def _check_types(base: Manifest, added: Manifest) -> None:
    known: set[str | EdgeType] = {*base.node_types, *(table.type for table in base.edge_types)}
    given: list[str | EdgeType] = [*added.node_types, *(table.type for table in added.edge_types)]
    unknown = [str(type_) for type_ in given if type_ not in known]
    if unknown:
        raise DataError(
            f"--new-nodes is invalid: the graph has no {', '.join(unknown)}. Append rows of types "
            "that its graph.yaml declares.",
            id="append-type-unknown",
        )
