"""Speed of the ingest: edges with integer and string ids, and dense features.

    python benchmarks/ingest.py --edges 10000000 --nodes 1000000

Beside each edge figure stands what NumPy and pandas need in memory for the same tables in the same
run: read the Parquet files, map the ids, sort by (destination, source), count the rows.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from raygnn.data.ingest import ingest

_MANIFEST = """
format: raygnn/graph-v1
node_types: {n: {files: nodes/*.parquet, id: id, features: {%s}}}
edge_types: [%s]
"""
_EDGES = "{type: [n, to, n], files: edges/*.parquet, source: s, target: t}"
_NUM_SHARDS = 4


def _write(folder: Path, tables: list[pa.Table]) -> None:
    folder.mkdir(parents=True)
    for i, table in enumerate(tables):
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=1 << 20, compression="none")


def _shards(table: pa.Table) -> list[pa.Table]:
    size = -(-table.num_rows // _NUM_SHARDS)
    return [table.slice(start, size) for start in range(0, table.num_rows, size)]


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _ids(kind: str, num_nodes: int, rng: np.random.Generator) -> pa.Array:
    if kind == "range":
        return pa.array(np.arange(num_nodes))
    if kind == "shuffled":
        return pa.array(rng.permutation(num_nodes))
    spread = rng.permutation(num_nodes) * 1_000_003
    if kind == "spread":
        return pa.array(spread)
    return pa.array([f"user-{i}" for i in spread])


def _peer(folder: Path) -> None:
    nodes = pq.read_table(folder / "nodes").column("id").to_pandas()
    edges = pq.read_table(folder / "edges")
    index = pd.Index(nodes)
    src = index.get_indexer(edges.column("s").to_pandas())
    dst = index.get_indexer(edges.column("t").to_pandas())
    order = np.lexsort((src, dst))
    np.cumsum(np.bincount(dst, minlength=len(nodes)))
    src[order]


def _edges(folder: Path, kind: str, num_nodes: int, num_edges: int) -> str:
    rng = np.random.default_rng(0)
    ids = _ids(kind, num_nodes, rng)
    _write(folder / "nodes", _shards(pa.table({"id": ids})))
    # Squared uniform numbers: some nodes have many edges, as in real graphs.
    ends = (rng.random((2, num_edges)) ** 2 * num_nodes).astype(np.int64)
    table = pa.table({"s": ids.take(pa.array(ends[0])), "t": ids.take(pa.array(ends[1]))})
    _write(folder / "edges", _shards(table))
    (folder / "graph.yaml").write_text(_MANIFEST % ("", _EDGES))
    ours = _timed(lambda: ingest(folder, cache_dir=folder / "cache"))
    again = _timed(lambda: ingest(folder, cache_dir=folder / "cache"))
    peer = _timed(lambda: _peer(folder))
    return (
        f"{kind:9} {num_edges / ours / 1e6:6.1f} M edges/s  ({ours:.1f} s; reuse {again:.2f} s; "
        f"pandas {num_edges / peer / 1e6:.1f} M/s; ratio {peer / ours:.2f})"
    )


def _features(folder: Path, kind: str, num_rows: int, width: int) -> str:
    rows = np.random.default_rng(0).random((num_rows, width), np.float32)
    columns = {
        "binary": lambda: pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(4 * width), num_rows, [None, pa.py_buffer(rows)]
        ),
        "tensor": lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(rows),
        "list": lambda: pa.ListArray.from_arrays(
            np.arange(num_rows + 1, dtype=np.int32) * width, pa.array(rows.reshape(-1))
        ),
    }
    table = pa.table({"id": np.arange(num_rows), "x": columns[kind]()})
    folder.mkdir(parents=True)
    (folder / "nodes").mkdir()
    for i, shard in enumerate(_shards(table)):
        path = folder / "nodes" / f"{i}.parquet"
        pq.write_table(shard, path, row_group_size=1 << 16, compression="none")
    (folder / "graph.yaml").write_text(_MANIFEST % ("x: x", ""))
    seconds = _timed(lambda: ingest(folder, cache_dir=folder / "cache"))
    peer = _timed(lambda: pq.read_table(folder / "nodes"))
    return (
        f"{kind:9} {rows.nbytes / seconds / 1e6:6.0f} MB/s  ({seconds:.1f} s; pyarrow read alone "
        f"{rows.nbytes / peer / 1e6:.0f} MB/s; ratio {peer / seconds:.2f})"
    )


def main() -> None:
    """Prints one line per case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of 128 float32")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="raygnn-ingest-"))
    try:
        # Compiles the kernels, so that the figures are of the work alone.
        for kind in ("range", "shuffled", "spread", "strings"):
            _edges(folder / f"warm-{kind}", kind, 1000, 5000)
        for kind in ("range", "shuffled", "spread", "strings"):
            print(_edges(folder / kind, kind, arguments.nodes, arguments.edges), flush=True)
            shutil.rmtree(folder / kind)
        for kind in ("binary", "tensor", "list"):
            print(_features(folder / kind, kind, arguments.rows, 128), flush=True)
            shutil.rmtree(folder / kind)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
