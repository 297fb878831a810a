"""Graph tables with rows appended: new nodes, and their edges, behind those of a graph."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raygnn.data.bundle import Bundle
from raygnn.data.cache import build_once, cache_folder
from raygnn.data.edge_types import EdgeType
from raygnn.data.filesystem import absolute, exists, is_below, join, redact, write_text
from raygnn.data.manifest import MANIFEST_NAME, Manifest, manifest_folder, manifest_uri
from raygnn.data.tables.files import list_files, match_files
from raygnn.data.tables.read_ids import dense_ids, read_id_files
from raygnn.errors import DataError

_EXAMPLES = 5


@dataclass(frozen=True)
class AppendedTables:
    """The tables of a graph and of what was appended to it.

    Attributes:
        uri: folder with a `graph.yaml` that names the files of both.
        roots: the folders that it names files of, outside of its own.
        new_nodes: files of the new nodes and the column of ids, by node type.
        known_nodes: files of the graph's own nodes, by node type.
    """

    uri: str
    roots: tuple[str, ...]
    new_nodes: dict[str, tuple[tuple[str, ...], str]]
    known_nodes: dict[str, tuple[str, ...]]

    def ids_of_new(self, bundle: Bundle, name: str, *, on_error: str) -> np.ndarray:
        """int64, the dense ids of the new nodes of a type, in the order of their rows.

        Bad rows of the graph may have been dropped. Those of new nodes may not: they are asked for,
        and a known node in their place would be answered instead.

        Args:
            on_error: `data.on_error` of the ingest; with `fail` it has refused all that is checked.
        Raises:
            DataError: the graph has an id already, or a row was dropped.
        """
        patterns, column = self.new_nodes[name]
        kind = bundle.id_map(name).kind

        def read(files: Sequence[str]) -> pa.Array:
            found = list_files("/", files, "--new-nodes", self.roots)
            return read_id_files(found, column, kind, "--new-nodes")

        ids = read(patterns)
        if on_error == "fail":
            return dense_ids(bundle, name, ids, "--new-nodes")
        known = ids.filter(pc.is_in(ids, value_set=read(self.known_nodes[name])))
        if len(known):
            raise DataError(
                f"--new-nodes is invalid: {_some(known, ids, name)} are in the graph already. Give "
                "new nodes ids of their own.",
                id="append-ids-known",
            )
        dropped = ids.filter(pa.array(bundle.id_map(name).lookup(ids) < 0))
        if len(dropped):
            raise DataError(
                f"--new-nodes is invalid: {_some(dropped, ids, name)} are in rows that "
                "data.on_error=drop leaves out, as the log of the ingest says. Repair these rows, "
                "or see what is wrong with --data.on_error fail.",
                id="append-rows-dropped",
            )
        return dense_ids(bundle, name, ids, "--new-nodes")


def append_tables(
    graph: str | os.PathLike[str],
    new: str | os.PathLike[str],
    cache_dir: str | os.PathLike[str] | None = None,
    allow_outside: Sequence[str] = (),
) -> AppendedTables:
    """Writes a manifest of a graph with the rows of other tables behind its own.

    Columns are read as the graph's manifest says; of the other one only the types and their files
    are. A folder without one has the files that the graph's names, or some of them. Labels and
    splits are left out, which new rows need not have.

    Args:
        graph: a folder with `graph.yaml`, or that file; a local path or any fsspec URI.
        new: likewise, or a folder with files of the graph's names.
        cache_dir: where the manifest is written, as of `ingest`.
        allow_outside: see `IngestOptions`.
    Raises:
        DataError: a manifest is wrong, or the new one has types that the graph lacks, or there is
            no file.
    """
    base = Manifest.load(graph, allow_outside)
    folders = [absolute(manifest_folder(uri)) for uri in (graph, new)]
    added = _given_files(base, new, allow_outside)

    def located(folder: str, files: Sequence[str]) -> tuple[str, ...]:
        return tuple(join(folder, pattern) for pattern in files)

    new_nodes = {
        name: (located(folders[1], files), base.node_types[name].id)
        for name, files in added.nodes.items()
    }
    new_edges = {type_: located(folders[1], files) for type_, files in added.edges.items()}
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
    known = {name: located(folders[0], table.files) for name, table in base.node_types.items()}
    return AppendedTables(str(folder), (*folders, *allow_outside), new_nodes, known)


def _some(found: pa.Array, ids: pa.Array, name: str) -> str:
    examples = found[:_EXAMPLES].to_pylist()
    return f"{len(found):,} of {len(ids):,} ids of {name!r}, such as {examples},"


@dataclass(frozen=True)
class _Files:
    """Patterns of files by type."""

    nodes: Mapping[str, Sequence[str]]
    edges: Mapping[EdgeType, Sequence[str]]


def _given_files(
    base: Manifest, new: str | os.PathLike[str], allow_outside: Sequence[str]
) -> _Files:
    folder = manifest_folder(new)
    is_named = exists(manifest_uri(new))
    manifest = Manifest.load(new, allow_outside) if is_named else base
    nodes = {name: table.files for name, table in manifest.node_types.items()}
    edges = {table.type: table.files for table in manifest.edge_types}
    if not is_named:
        nodes = {name: found for name in nodes if (found := _present(folder, nodes[name]))}
        edges = {type_: found for type_ in edges if (found := _present(folder, edges[type_]))}
    if not nodes and not edges:
        expected = [name for table in base.node_types.values() for name in table.files]
        raise DataError(
            f"--new-nodes={redact(folder)!r} is invalid: it has no {MANIFEST_NAME}, and no file "
            f"with the name of one of the graph, as {expected[0]}. Name a folder with tables of "
            "new nodes.",
            id="append-no-files",
        )
    _check_types(base, [*nodes, *edges])
    return _Files(nodes, edges)


def _present(folder: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns that match a file; a folder has none of those that lead out of it."""
    own = [pattern for pattern in patterns if is_below(join(folder, pattern), [folder])]
    return tuple(p for p in own if match_files(folder, p, "--new-nodes"))


def _check_types(base: Manifest, given: Sequence[str | EdgeType]) -> None:
    known: set[str | EdgeType] = {*base.node_types, *(table.type for table in base.edge_types)}
    unknown = [str(type_) for type_ in given if type_ not in known]
    if unknown:
        raise DataError(
            f"--new-nodes is invalid: the graph has no {', '.join(unknown)}. Append rows of types "
            "that its graph.yaml declares.",
            id="append-type-unknown",
        )
