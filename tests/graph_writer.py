"""Writes small graphs for tests: tables as given, one file per shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import GraphTables, write_tables


def ingest_tables(folder: Path, tables: GraphTables, **options: Any) -> Bundle:
    """Writes tables into a folder, and ingests them with some `IngestOptions`."""
    uri = write_tables(tables, str(folder / "tables"))
    return ingest(uri, IngestOptions(**options), str(folder / "cache"))


def write_shards(
    folder: Path, tables: Sequence[pa.Table], suffix: str = ".parquet", row_group_size: int = 4
) -> None:
    """Writes `part-0`, `part-1`, ... in the format of the suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, table in enumerate(tables):
        path = folder / f"part-{i}{suffix}"
        if suffix == ".parquet":
            pq.write_table(table, path, row_group_size=row_group_size)
        else:
            delimiter = "\t" if suffix == ".tsv" else ","
            options = pa.csv.WriteOptions(delimiter=delimiter, quoting_style="needed")
            pa.csv.write_csv(table, path, options)


def cut(table: pa.Table, num_shards: int) -> list[pa.Table]:
    """Cuts a table into shards of nearly equal size, in order."""
    bounds = [i * table.num_rows // num_shards for i in range(num_shards + 1)]
    return [table.slice(a, b - a) for a, b in pairwise(bounds) if b > a]


def write_graph(
    folder: Path,
    nodes: pa.Table | Sequence[pa.Table],
    edges: pa.Table | Sequence[pa.Table] | None = None,
    node_spec: Mapping[str, Any] | None = None,
    edge_spec: Mapping[str, Any] | None = None,
    suffix: str = ".parquet",
) -> Path:
    """Writes a graph with node type `n` (column `id`) and edge type n__to__n (columns `s`, `t`)."""
    write_shards(folder / "nodes", [nodes] if isinstance(nodes, pa.Table) else nodes, suffix)
    manifest: dict[str, Any] = {
        "format": "raygnn/graph-v1",
        "node_types": {"n": {"files": f"nodes/*{suffix}", "id": "id", **(node_spec or {})}},
    }
    if edges is not None:
        write_shards(folder / "edges", [edges] if isinstance(edges, pa.Table) else edges, suffix)
        manifest["edge_types"] = [
            {
                "type": ["n", "to", "n"],
                "files": f"edges/*{suffix}",
                "source": "s",
                "target": "t",
                **(edge_spec or {}),
            }
        ]
    (folder / "graph.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    return folder
