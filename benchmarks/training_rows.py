r"""Training tables of many rows: rows/s of batches from the disk, and memory of a run.

    systemd-run --scope -p MemoryMax=1200M \
        python benchmarks/training_rows.py --rows 200000000 --only reads
    python benchmarks/training_rows.py --rows 10000000 100000000 --only runs

"reads" makes batches of 1,024 rows (entity, time, label) of mapped arrays, which the limit keeps
out of the page cache: in the order of `windowed_order`, and of one permutation of all rows, asking
ahead for the pages of a batch. "runs" ingests tables and trains 50 steps with all defaults in one
process without Ray, and says what memory is its own; then Ray Data streams the Parquet files of the
rows, with a shuffle buffer of as many rows as a window.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import Row, parser, publish
from ingest import OwnMemory

from raygnn.data.arrays import (
    ask_for_rows,
    create_array,
    expect_random_reads,
    open_array,
    row_blocks,
)
from raygnn.sampling.rng import seed_order, windowed_order

_BATCH, _WINDOW, _NUM_ENTITIES, _FILE_ROWS = 1024, 1 << 22, 100_000, 10_000_000
_DAYS, _DAY_US, _MAX_S = 1000, 86_400_000_000, 60
_COLUMNS = {"node": np.int32, "time": np.int64, "label": np.float32, "train": np.int64}
_GRAPH = """
format: raygnn/graph-v1
node_types:
  user: {files: users.parquet, id: id, features: {x: age}}
  shop: {files: shops.parquet, id: id, features: {x: size}}
edge_types:
  - {type: [shop, sold_to, user], files: sales.parquet, source: shop, target: user, time: at}
training_tables:
  spent:
    {files: rows/*.parquet, node_type: user, node: user, time: at, labels: {y: y}, window: 1d}
"""
_CONFIG = """
data: {{uri: {folder}, cache_dir: {folder}/cache}}
training: {{max_steps: 50, num_val_batches: 20, num_test_batches: 20}}
model: Hetero
scaling: {{num_workers: 0}}
run: {{storage_path: {folder}/runs}}
"""


# LightGBM reads at most so many cells however many rows there are; here fewer, to save time.
_RUN = """
import sys, raygnn.loops.tasks.label_task as of_labels, raygnn.train
of_labels._MAX_CELLS = 1 << 20
raygnn.train.fit(sys.argv[1])
"""


def rows_between(first: int, last: int, num_rows: int) -> dict[str, np.ndarray]:
    """Some of the rows, which are in the order of time, as of a question asked each day."""
    rng, at = np.random.default_rng(first), np.arange(first, last)
    days = at * _DAYS // num_rows
    node = rng.integers(0, _NUM_ENTITIES, last - first, np.int32)
    label = rng.exponential(20 + node % 50).astype(np.float32)
    return {"node": node, "time": days * _DAY_US, "label": label, "train": at}


def write_arrays(folder: Path, num_rows: int) -> None:
    """Writes the columns of the rows; they are then on the disk."""
    if (folder / "whole").exists():
        return
    arrays = {
        name: create_array(folder / f"{name}.npy", (num_rows,), dtype)
        for name, dtype in _COLUMNS.items()
    }
    for some in row_blocks(num_rows):
        for name, values in rows_between(some.start, some.stop, num_rows).items():
            arrays[name][some] = values
    (folder / "whole").touch()


def forget(folder: Path) -> None:
    """Drops the files from the page cache."""
    for path in folder.rglob("*.*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_batches(folder: Path, num_rows: int, order: Callable[..., np.ndarray]) -> float:
    """Rows/s of batches from a cold cache, for one window or a minute."""
    columns = {name: open_array(folder / f"{name}.npy") for name in _COLUMNS}
    for array in columns.values():
        expect_random_reads(array)
    forget(folder)
    began = time.perf_counter()
    for start in range(0, min(_WINDOW, num_rows - _BATCH), _BATCH):
        places = order(num_rows, 0, 0, start, start + _BATCH)
        if order is seed_order:
            ask_for_rows(columns["train"], np.sort(places))
        rows = columns["train"][places]
        for name in ("node", "time", "label"):
            if order is seed_order:
                ask_for_rows(columns[name], np.sort(rows))
            columns[name][rows].sum()
        if (took := time.perf_counter() - began) > _MAX_S:
            break
    return (start + _BATCH) / took


def stream_batches(folder: Path, num_rows: int) -> tuple[float, float]:
    """Rows/s of Ray Data, and seconds until its first batch."""
    import ray

    forget(folder)
    began = time.perf_counter()
    dataset = ray.data.read_parquet(str(folder))
    batches = dataset.iter_batches(
        batch_size=_BATCH, local_shuffle_buffer_size=min(_WINDOW, num_rows), local_shuffle_seed=0
    )
    read = iter(batches)
    next(read)
    first = time.perf_counter()
    some = itertools.islice(read, min(_WINDOW, num_rows) // _BATCH)
    return sum(len(batch["y"]) for batch in some) / (time.perf_counter() - first), first - began


def write_tables(folder: Path, num_rows: int) -> None:
    """Writes a graph of sales, and a training table."""
    rng = np.random.default_rng(0)
    (folder / "rows").mkdir(parents=True)
    users, shops = np.arange(_NUM_ENTITIES), np.arange(1000)
    pq.write_table(pa.table({"id": users, "age": users % 80}), folder / "users.parquet")
    pq.write_table(pa.table({"id": shops, "size": shops % 7}), folder / "shops.parquet")
    num_sales = 1_000_000
    sales = {"shop": rng.integers(0, 1000, num_sales)}
    sales["user"] = rng.integers(0, _NUM_ENTITIES, num_sales)
    days = pa.array(rng.integers(0, _DAYS, num_sales) * _DAY_US, pa.timestamp("us"))
    pq.write_table(pa.table({**sales, "at": days}), folder / "sales.parquet")
    for number, first in enumerate(range(0, num_rows, _FILE_ROWS)):
        rows = rows_between(first, min(first + _FILE_ROWS, num_rows), num_rows)
        at = pa.array(rows["time"], pa.timestamp("us"))
        table = pa.table({"user": rows["node"], "at": at, "y": rows["label"]})
        pq.write_table(table, folder / "rows" / f"{number:03}.parquet")
    (folder / "graph.yaml").write_text(_GRAPH)
    (folder / "train.yaml").write_text(_CONFIG.format(folder=folder))


def reads(work: Path, num_rows: int) -> Iterator[Row]:
    folder = work / f"arrays-{num_rows}"
    folder.mkdir(parents=True, exist_ok=True)
    write_arrays(folder, num_rows)
    windowed = read_batches(folder, num_rows, windowed_order)
    yield Row(f"{num_rows:,} rows, in windows", windowed, "rows/s")
    plain = read_batches(folder, num_rows, seed_order)
    yield Row(f"{num_rows:,} rows, any order", plain, "rows/s", windowed / plain, "by windows")


def runs(work: Path, num_rows: int) -> Iterator[Row]:
    folder = work / f"tables-{num_rows}"
    if not folder.exists():
        write_tables(folder, num_rows)
    for name in ("first run, with the ingest", "second run"):
        began = time.perf_counter()
        command = [sys.executable, "-c", _RUN, str(folder / "train.yaml")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            pids = [process.pid]
            with OwnMemory(lambda pids=pids: pids) as memory:
                process.wait()
        if process.returncode:
            raise SystemExit(f"training failed: {command}")
        note = f"{time.perf_counter() - began:.0f} s"
        yield Row(f"{num_rows:,} rows, {name}", memory.peak_bytes / 1e9, "GB", note=note)
    rate, first_s = stream_batches(folder / "rows", num_rows)
    note = f"the first batch after {first_s:.1f} s"
    yield Row(f"{num_rows:,} rows, Ray Data", rate, "rows/s", note=note)


def main(arguments: list[str] | None = None) -> None:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, nargs="+", default=[1_000_000], metavar="N")
    options.add_argument("--only", choices=("reads", "runs"))
    chosen = options.parse_args(arguments)
    rows: list[Row] = []
    for num_rows in chosen.rows:
        for name, measure in (("reads", reads), ("runs", runs)):
            if chosen.only in (None, name):
                rows += measure(Path(chosen.work).absolute() / "training_rows", num_rows)
    publish("training_rows", chosen, rows)


if __name__ == "__main__":
    main()
