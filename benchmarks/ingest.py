"""Speed and memory of the ingest: edges by kind of id and number of files, and dense features.

    python benchmarks/ingest.py --scale reference

Beside each edge figure stands what NumPy and pandas need in memory for the same tables in the same
run: read the Parquet files, map the ids, sort by (destination, source), count the rows. Beside each
feature figure stands pyarrow's reading of the same files. Each ingest runs in a process of its own,
after a small one that loads the kernels. Its peak memory is what it has of its own: pages of mapped
tables and of the bundle can be dropped at any time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from harness import SCALES, Row, Scale, parser, publish, timed

from raygnn.data.ingest.build_bundle import ingest

ID_KINDS = ("range", "shuffled", "spread", "strings")
#: Files of a table of edges between ids 0, 1, 2...; of the other kinds `_NUM_FILES`.
FILE_COUNTS = {"10,000 files": 10_000, "one file": 1}
FEATURE_KINDS = ("binary", "tensor", "list")
#: Edges a second, and bytes of features a second.
_AIMS = {
    **dict.fromkeys(("range", "shuffled", "spread", *FILE_COUNTS), 5e6),
    **{"strings": 1e6, "binary": 300e6, "tensor": 150e6},
}
_SPARE_BYTES = 2e9  # aim for the peak, beside the bundle's pages
_LOOK_EVERY_S = 0.005

_MANIFEST = """
format: raygnn/graph-v1
node_types: {n: {files: nodes/*.parquet, id: id, features: {%s}}}
edge_types: [%s]
"""
_EDGES = "{type: [n, to, n], files: edges/*.parquet, source: s, target: t}"
_NUM_FILES = 4
_WARM_UP = Scale("warm-up", 1000, 5000, 8, 0, 0, 0, (), 1)


@dataclass(frozen=True)
class Ingested:
    """One ingest in a fresh process.

    Attributes:
        cpu_s: processor time of all threads.
        again_s: a second start, which finds the bundle.
    """

    seconds: float
    cpu_s: float
    again_s: float
    bundle_bytes: int
    peak_bytes: int


class OwnMemory(Thread):
    """Looks every few milliseconds how much memory is processes' own, inside of a `with`.

    Args:
        pids: of the processes. Default: this one.
    """

    def __init__(self, pids: Callable[[], Iterable[int]] = lambda: [os.getpid()]) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._pids = pids
        self._is_over = Event()

    def run(self) -> None:
        """Looks until the block is left."""
        while not self._is_over.wait(_LOOK_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, self._bytes())

    def __enter__(self) -> Self:
        self.peak_bytes = self._bytes()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def _bytes(self) -> int:
        found = 0
        for pid in self._pids():
            with suppress(FileNotFoundError, ProcessLookupError, IndexError):  # it has ended
                text = Path(f"/proc/{pid}/status").read_text()
                found += int(text.partition("RssAnon:")[2].split()[0]) * 1024
        return found


def write_edges(folder: Path, kind: str, scale: Scale) -> float:
    """Writes tables of edges between ids of a kind; returns how many."""
    rng = np.random.default_rng(0)
    ids = _ids(kind, scale.num_nodes, rng)
    _write(folder / "nodes", pa.table({"id": ids}), 1 << 20)
    # Squared uniform numbers: some nodes have many edges, as in real graphs.
    ends = (rng.random((2, scale.num_edges)) ** 2 * scale.num_nodes).astype(np.int64)
    table = pa.table({"s": ids.take(pa.array(ends[0])), "t": ids.take(pa.array(ends[1]))})
    _write(folder / "edges", table, 1 << 20, FILE_COUNTS.get(kind, _NUM_FILES))
    (folder / "graph.yaml").write_text(_MANIFEST % ("", _EDGES))
    return scale.num_edges


def write_features(folder: Path, kind: str, scale: Scale) -> float:
    """Writes tables of nodes with float32 rows in a column of a kind; returns their bytes."""
    num_rows, width = scale.num_nodes, scale.num_features
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
    _write(folder / "nodes", table, 1 << 16)
    (folder / "graph.yaml").write_text(_MANIFEST % ("x: x", ""))
    return rows.nbytes


def ingest_fresh(warm_up: Path, folder: Path) -> Ingested:
    """Ingests tables in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_ingest, warm_up, folder).result()


def _ingest(warm_up: Path, folder: Path) -> Ingested:
    ingest(warm_up, cache_dir=warm_up / "cache")
    cache = folder / "cache"
    busy = time.process_time()
    with OwnMemory() as memory:
        seconds = timed(partial(_opened, folder, cache))
    cpu_s = time.process_time() - busy
    again_s = timed(partial(_opened, folder, cache))
    size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    return Ingested(seconds, cpu_s, again_s, size, memory.peak_bytes)


def _opened(folder: Path, cache: Path) -> None:
    ingest(folder, cache_dir=cache)


def sort_in_memory(folder: Path) -> None:
    """The peer of the edges."""
    nodes = pq.read_table(folder / "nodes").column("id").to_pandas()
    edges = pq.read_table(folder / "edges")
    index = pd.Index(nodes)
    src = index.get_indexer(edges.column("s").to_pandas())
    dst = index.get_indexer(edges.column("t").to_pandas())
    order = np.lexsort((src, dst))
    np.cumsum(np.bincount(dst, minlength=len(nodes)))
    src[order]


def read_only(folder: Path) -> None:
    """The peer of the features."""
    pq.read_table(folder / "nodes")


def rows_of(kind: str, amount: float, found: Ingested, peer_s: float) -> list[Row]:
    """The rows of one case.

    Args:
        amount: edges, or bytes of features.
    """
    is_features = kind in FEATURE_KINDS
    unit, scale, peer = (
        ("MB/s", 1e6, "pyarrow's read") if is_features else ("M edges/s", 1e6, "pandas")
    )
    aim = f">= {_AIMS[kind] / scale:g} {unit}" if kind in _AIMS else ""
    what = f"features, {kind} column" if is_features else f"edges, {kind} ids"
    what = f"edges, {kind}" if kind in FILE_COUNTS else what
    rate = amount / found.seconds / scale
    note = f"{found.seconds:.1f} s, {found.cpu_s:.1f} s of processors"
    return [
        Row(what, rate, unit, peer_s / found.seconds, f"the rate of {peer}", aim, note),
        Row(
            f"- peak memory, beside the bundle of {found.bundle_bytes / 1e6:,.0f} MB",
            found.peak_bytes / 1e6,
            "MB",
            aim=f"<= {_SPARE_BYTES / 1e6:,.0f} MB",
        ),
        Row("- second start", found.again_s, "s", aim="<= 1 s"),
    ]


def _ids(kind: str, num_nodes: int, rng: np.random.Generator) -> pa.Array:
    if kind == "range" or kind in FILE_COUNTS:
        return pa.array(np.arange(num_nodes))
    if kind == "shuffled":
        return pa.array(rng.permutation(num_nodes))
    spread = rng.permutation(num_nodes) * 1_000_003
    if kind == "spread":
        return pa.array(spread)
    return pa.array([f"user-{i}" for i in spread])


def _write(folder: Path, table: pa.Table, row_group_size: int, num_files: int = _NUM_FILES) -> None:
    folder.mkdir(parents=True)
    size = -(-table.num_rows // num_files)
    for i, start in enumerate(range(0, table.num_rows, size)):
        path = folder / f"{i}.parquet"
        shard = table.slice(start, size)
        pq.write_table(shard, path, row_group_size=row_group_size, compression="none")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs each case; tables are removed as soon as they are measured."""
    options = parser(__doc__)
    kinds = (*ID_KINDS, *FILE_COUNTS, *FEATURE_KINDS)
    options.add_argument("--only", nargs="+", choices=kinds, default=kinds, metavar="KIND")
    given = options.parse_args(argv)
    Path(given.work).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ingest-", dir=given.work))
    rows = []
    try:
        for kind in given.only:
            is_features = kind in FEATURE_KINDS
            write: Callable[[Path, str, Scale], float]
            write, peer = (
                (write_features, read_only) if is_features else (write_edges, sort_in_memory)
            )
            write(folder / f"warm-{kind}", kind, _WARM_UP)
            ingest(folder / f"warm-{kind}", cache_dir=folder / "warm-cache")  # compiles
            amount = write(folder / kind, kind, SCALES[given.scale])
            found = ingest_fresh(folder / f"warm-{kind}", folder / kind)
            rows += rows_of(kind, amount, found, timed(partial(peer, folder / kind)))
            shutil.rmtree(folder / kind)
    finally:
        shutil.rmtree(folder)
    publish("ingest", given, rows)


if __name__ == "__main__":
    main()
