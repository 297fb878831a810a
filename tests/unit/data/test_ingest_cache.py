"""When a bundle is reused, built again, waited for, or thrown away; folders that are built."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raygnn.data.arrays import create_array, open_array
from raygnn.data.bundle import Bundle
from raygnn.data.cache import CACHE_VARIABLE, building
from raygnn.data.ingest import scan, sort_edges
from raygnn.data.ingest.build_bundle import IngestOptions, bundle_folder, ingest
from raygnn.data.ingest.schedule import in_process
from tests.errors import raises
from tests.graph_writer import write_graph, write_shards


def _nodes(scale: float = 1.0) -> pa.Table:
    return pa.table({"id": np.arange(50), "x": np.arange(50) * scale})


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    edges = pa.table({"s": np.arange(49), "t": np.arange(1, 50)})
    return write_graph(tmp_path / "graph", _nodes(), edges, {"features": {"x": "x"}})


def _bundles(cache: Path) -> list[str]:
    return sorted(p.name for p in (cache / "bundles").iterdir() if not p.name.endswith(".lock"))


def test_second_ingest_reuses(graph: Path, tmp_path: Path) -> None:
    said: list[str] = []
    first = ingest(graph, cache_dir=tmp_path / "cache", progress=said.append)
    assert any("reading 50 nodes" in line for line in said)
    again: list[str] = []
    second = ingest(graph / "graph.yaml", cache_dir=tmp_path / "cache", progress=again.append)
    assert second.path == first.path
    assert again == [f"ingest: reusing bundle {first.path}"]
    assert _bundles(tmp_path / "cache") == [first.fingerprint]


def test_tables_that_moved_are_the_same(graph: Path, tmp_path: Path) -> None:
    first = ingest(graph, cache_dir=tmp_path / "cache")
    graph.rename(tmp_path / "moved")
    assert ingest(tmp_path / "moved", cache_dir=tmp_path / "cache").path == first.path


@pytest.mark.parametrize("whole_content_bytes", [1 << 20, 0], ids=["content", "footer"])
@pytest.mark.parametrize("what", ["value", "manifest", "options", "file"])
def test_changes_are_noticed(
    what: str,
    whole_content_bytes: int,
    graph: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "_WHOLE_CONTENT_BYTES", whole_content_bytes)
    first = ingest(graph, cache_dir=tmp_path / "cache")
    options = IngestOptions()
    if what == "value":
        write_shards(graph / "nodes", [_nodes(2.0)])
    elif what == "manifest":
        text = (graph / "graph.yaml").read_text()
        (graph / "graph.yaml").write_text(text.replace("x: x", "z: x"))
    elif what == "options":
        options = IngestOptions(feature_dtype="float16")
    else:
        (graph / "nodes" / "part-0.parquet").rename(graph / "nodes" / "other.parquet")
    assert ingest(graph, options, cache_dir=tmp_path / "cache").path != first.path


def test_csv_is_hashed_whole(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "graph", _nodes(), suffix=".csv")
    shard = graph / "nodes" / "part-0.csv"
    first = ingest(graph, cache_dir=tmp_path / "cache")
    stat = shard.stat()
    shard.write_text(shard.read_text().replace("49", "94"))
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert ingest(graph, cache_dir=tmp_path / "cache").path != first.path


def test_damaged_bundles_are_built_again(graph: Path, tmp_path: Path) -> None:
    first = ingest(graph, cache_dir=tmp_path / "cache")
    path = first.path / "nodes" / "n" / "columns" / "x.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with raises("bundle-damaged", "columns/x.npy", 320, 328):
        Bundle.open(first.path)
    said: list[str] = []
    again = ingest(graph, cache_dir=tmp_path / "cache", progress=said.append)
    assert "building again, because" in said[0]
    assert np.array_equal(again.column("n", "x"), np.arange(50))


@pytest.mark.parametrize(
    "file", ["edges/n__to__n/indptr.npy", "edges/n__to__n/indices.npy", "nodes/n/id_offsets.npy"]
)
@pytest.mark.parametrize("at", [0, 8, 200, -1])
def test_a_pointer_that_leads_out_of_its_array(tmp_path: Path, file: str, at: int) -> None:
    """A byte of a file is flipped: of the head, of the middle, the highest of the last number."""
    nodes = pa.table({"id": [f"node {i}" for i in range(50)], "x": np.arange(50)})
    ends = pa.array([f"node {i}" for i in range(50)])
    edges = pa.table({"s": ends[:49], "t": ends[1:]})
    graph = write_graph(tmp_path / "graph", nodes, edges, {"features": {"x": "x"}})
    first = ingest(graph, cache_dir=tmp_path / "cache")
    path = first.path / file
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 0x80
    path.write_bytes(damaged)
    said: list[str] = []
    ingest(graph, cache_dir=tmp_path / "cache", progress=said.append)
    assert re.search("building again, because .* is damaged", said[0])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("table", ["nodes", "edges"])
def test_tables_that_change_while_they_are_read(graph: Path, tmp_path: Path, table: str) -> None:
    """Other rows in as many row groups, which reading alone does not notice."""
    shard = graph / table / "part-0.parquet"
    rows, size = pq.read_table(shard), pq.read_metadata(shard).row_group(0).num_rows

    def schedule(*arguments: Any) -> Any:
        done = in_process(*arguments)
        pq.write_table(rows.take(list(range(len(rows)))[::-1]), shard, row_group_size=size)
        return done

    with raises("data-file-changed", f"{table}/part-0.parquet"):
        ingest(graph, cache_dir=tmp_path / "cache", schedule=schedule)
    assert _bundles(tmp_path / "cache") == []


def test_one_thread_at_a_time_reads_a_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_array(tmp_path / "a.npy", (3, 2), np.float32)
    load, inside = np.load, threading.Lock()

    def slow_load(*arguments: Any, **options: Any) -> Any:
        assert inside.acquire(blocking=False)
        time.sleep(0.005)
        inside.release()
        return load(*arguments, **options)

    monkeypatch.setattr(np, "load", slow_load)
    with ThreadPoolExecutor(4) as pool:
        arrays = list(pool.map(open_array, [tmp_path / "a.npy"] * 16))
    assert {array.shape for array in arrays} == {(3, 2)}


def _ingest_here(graph: Path, cache: Path, said: list[str]) -> None:
    ingest(graph, cache_dir=cache, progress=said.append)


def test_threads_build_once(graph: Path, tmp_path: Path) -> None:
    said: list[list[str]] = [[] for _ in range(4)]
    threads = [
        threading.Thread(target=_ingest_here, args=(graph, tmp_path / "cache", lines))
        for lines in said
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    builders = [lines for lines in said if any("wrote bundle" in line for line in lines)]
    assert len(builders) == 1
    assert sum("reusing bundle" in line for lines in said for line in lines) == 3
    assert len(_bundles(tmp_path / "cache")) == 1


_DIE_IN_THE_MIDDLE = """
import os, signal, sys
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.schedule import in_process

def schedule(fn, items, label):
    if label == "moving edges to buckets":
        os.kill(os.getpid(), signal.SIGKILL)
    return in_process(fn, items, label)

ingest(sys.argv[1], cache_dir=sys.argv[2], schedule=schedule)
"""


def test_a_dead_build_leaves_no_bundle(graph: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", _DIE_IN_THE_MIDDLE, str(graph), str(cache)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = _bundles(cache)
    assert left.startswith(".building-")
    with raises("bundle-missing", "bundle.json"):
        Bundle.open(cache / "bundles" / left)
    bundle = ingest(graph, cache_dir=cache)
    assert _bundles(cache) == [bundle.fingerprint]


def test_stale_folders_of_other_graphs_go_unless_locked(graph: Path, tmp_path: Path) -> None:
    bundles = bundle_folder(tmp_path / "cache")
    for name in ("dead", "alive"):
        (bundles / f".building-{name}-1").mkdir()
    with filelock.FileLock(bundles / "alive.lock"):
        bundle = ingest(graph, cache_dir=tmp_path / "cache")
        assert _bundles(tmp_path / "cache") == [".building-alive-1", bundle.fingerprint]


def test_waiting_is_said(graph: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    name = ingest(graph, cache_dir=tmp_path / "other").fingerprint
    said: list[str] = []
    lock = filelock.FileLock(bundle_folder(cache) / f"{name}.lock")
    lock.acquire()
    thread = threading.Thread(target=_ingest_here, args=(graph, cache, said))
    thread.start()
    for _ in range(500):
        if said:
            break
        time.sleep(0.01)
    lock.release()
    thread.join()
    assert said[0] == "ingest: waiting for another process that builds this bundle"


def test_failing_tasks_leave_nothing(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(sort_edges, "scatter_edges", fail)
    with pytest.raises(OSError, match="disk on fire"):
        ingest(graph, cache_dir=tmp_path / "cache")
    assert _bundles(tmp_path / "cache") == []


def test_full_disk_is_said(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with raises("data-cache-full", "No space"):
        ingest(graph, cache_dir=tmp_path / "cache")


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "from-env"))
    assert bundle_folder() == tmp_path / "from-env" / "bundles"
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert bundle_folder() == tmp_path / ".cache" / "raygnn" / "bundles"
    with raises("data-cache-remote", "gs://b/c"):
        bundle_folder("gs://b/c")
    (tmp_path / "file").touch()
    with raises("data-cache-unusable", "folder bundles", "/file"):
        bundle_folder(tmp_path / "file")

    def no_home(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with raises("data-cache-unusable", "folder bundles", "RAYGNN_CACHE_DIR"):
        bundle_folder()


@pytest.mark.parametrize("by_ranges", [False, True])
def test_tables_of_a_store(
    graph: Path, tmp_path: Path, by_ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    if by_ranges:  # as large files
        monkeypatch.setattr("raygnn.data.tables.files._WHOLE_FILE_BYTES", 0)
    fs = fsspec.filesystem("memory")
    fs.put(str(graph), "/raygnn-test-graph", recursive=True)
    try:
        bundle = ingest("memory://raygnn-test-graph", cache_dir=tmp_path / "cache")
    finally:
        fs.rm("/raygnn-test-graph", recursive=True)
    local = ingest(graph, cache_dir=tmp_path / "local")
    assert np.array_equal(bundle.column("n", "x"), local.column("n", "x"))
    assert bundle.fingerprint == local.fingerprint


@pytest.mark.parametrize(("least_bytes", "is_scheduled"), [(0, True), (1 << 30, False)])
def test_small_tables_are_converted_in_this_process(graph, tmp_path, least_bytes, is_scheduled):
    labels: list[str] = []

    def schedule(fn, items, label):
        labels.append(label)
        return [fn(item) for item in items]

    options = {"schedule": schedule, "min_scheduled_bytes": least_bytes}
    bundle = ingest(graph, cache_dir=tmp_path / "cache", **options)
    assert bundle.num_nodes("n") == 50
    assert bool(labels) == is_scheduled


def test_two_attempts_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    folder = tmp_path / "task"
    with building(folder) as first:
        (first / "result.json").write_text("first")
        with building(folder) as second:
            assert first != second
            (second / "result.json").write_text("second")
    assert (folder / "result.json").read_text() == "second"  # which was whole first
    assert [path.name for path in tmp_path.iterdir()] == ["task"]


def _fail(folder: Path) -> None:
    with building(folder) as half:
        (half / "half.npy").write_bytes(b"half")
        raise ValueError("x")


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"):
        _fail(tmp_path / "task")
    assert not list(tmp_path.iterdir())
