"""Tasks of ingest: in which order they end, and on which nodes they run."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import ray

import raygnn.runtime.ingest
from raygnn.data.ingest import pieces, sort_edges
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.schedule import OnAnyNode, RowWriter, Schedule, in_process, in_threads
from raygnn.errors import DataError
from raygnn.runtime.ingest import ingest_on_cluster, on_ray
from raygnn.runtime.ray_tasks import Outcome
from tests.folders import contents
from tests.varied_graph import TABLES, write_varied_graph


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 3000)
    monkeypatch.setattr(sort_edges, "BUCKET_EDGES", 200)


@contextmanager
def _hidden(folder: Path) -> Iterator[None]:
    elsewhere = folder.with_name("hidden")
    folder.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(folder)


def _elsewhere(cache: Path, computed: Counter[str]) -> Schedule:
    """Runs tasks last one first, and those of any node while the cache is out of sight."""

    def schedule(fn: Any, items: Sequence[Any], label: str) -> list[Any]:
        return [run(fn, item) for item in reversed(items)][::-1]

    def run(fn: Any, item: Any) -> Any:
        if not isinstance(fn, OnAnyNode):
            return fn(item)
        computed[fn.compute.__name__] += 1
        arrays = [rows.read().copy() for rows in item.inputs]
        for array in arrays:
            array.flags.writeable = False  # as those of Ray's object store
        written: list[tuple[Path, int | None, np.ndarray]] = []
        with _hidden(cache):
            task = pickle.loads(pickle.dumps(item))
            result = fn.compute(task, arrays, lambda *rows: written.append(rows))
        write = RowWriter()
        for rows in written:
            write(*rows)
        return result

    return schedule


@pytest.mark.parametrize(("bad", "reverse_edges"), [((), None), (TABLES, True)])
def test_bundle_is_the_same(tmp_path: Path, bad: Sequence[str], reverse_edges: bool | None) -> None:
    graph = write_varied_graph(tmp_path / "graph", bad)
    options = IngestOptions(on_error="drop" if bad else "fail", reverse_edges=reverse_edges)
    here = ingest(graph, options, tmp_path / "here")
    there, computed = tmp_path / "there", Counter[str]()
    bundle = ingest(graph, options, there, _elsewhere(there, computed))
    assert contents(bundle.path) == contents(here.path)
    assert set(computed) == {"convert_nodes", "convert_rows", "order_edges"}
    assert min(computed.values()) > 3


@pytest.mark.parametrize("bad", [("user", "item"), ("knows", "bought", "like", "returned")])
def test_findings_are_the_same(tmp_path: Path, bad: Sequence[str]) -> None:
    graph = write_varied_graph(tmp_path / "graph", bad)
    cache = tmp_path / "there"
    with pytest.raises(DataError) as here:
        ingest(graph, cache_dir=tmp_path / "here")
    with pytest.raises(DataError) as there:
        ingest(graph, cache_dir=cache, schedule=_elsewhere(cache, Counter()))
    assert there.value.id == here.value.id
    assert str(there.value) == str(here.value)
    assert all(f"{name}/part-" in str(here.value) for name in bad)


def test_results_come_in_the_order_of_the_items() -> None:
    def late_first(item: int) -> int:
        time.sleep(0.01 * (item == 0))
        return item * item

    assert in_process(late_first, range(10), "squaring") == [i * i for i in range(10)]
    assert in_process(late_first, [], "squaring") == []


def test_threads_that_fail_take_no_other_item() -> None:
    begun: list[int] = []

    def fail(item: int) -> None:
        begun.append(item)
        time.sleep(0.01)
        raise DataError(f"item {item} is bad")

    with pytest.raises(DataError, match="item 0 is bad"):
        in_threads(fail, range(100), "failing", 4)
    assert len(begun) <= 4


def test_the_first_error_ends_the_rest() -> None:
    done: list[int] = []

    def fail_at_zero(item: int) -> None:
        if item == 0:
            raise DataError("item 0 is bad")
        time.sleep(0.001)
        done.append(item)

    with pytest.raises(DataError, match="item 0 is bad"):
        in_process(fail_at_zero, range(500), "failing")
    assert len(done) < 499


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the ingest was asked for last."""
    options: dict[str, Any] = {}
    monkeypatch.setattr(
        raygnn.runtime.ingest, "ingest", lambda *args, **given: options.update(given)
    )
    context = SimpleNamespace(get_node_id=lambda: "here")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return options


@pytest.mark.parametrize(
    ("cpus", "uri", "node"),
    [
        ({"here": 4, "there": 8}, "gs://bucket/graph", None),
        ({"here": 0, "there": 8, "more": 16}, "gs://bucket/graph", "more"),
        ({"here": 0, "there": 8}, "/data/graph", None),
        ({"here": 0}, "gs://bucket/graph", None),
    ],
)
def test_the_node_that_ingests(asked, monkeypatch, cpus, uri, node):
    gone = {"NodeID": "gone", "Alive": False, "Resources": {"CPU": 99.0}}
    nodes = [{"NodeID": n, "Alive": True, "Resources": {"CPU": c}} for n, c in cpus.items()]
    monkeypatch.setattr(ray, "nodes", lambda: [gone, *nodes])
    ingest_on_cluster(uri, IngestOptions(), None)
    assert asked["min_scheduled_bytes"] == raygnn.runtime.ingest.MIN_SCHEDULED_BYTES
    assert (asked["elsewhere"].args[0] if asked["elsewhere"] else None) == node


@dataclass(frozen=True)
class _Task:
    files: tuple[str, ...] | None  # None stands for a task that only uses the folder


_REMOTE = _Task(("gs://bucket/a.parquet",))
_LOCAL = _Task(("gs://bucket/a.parquet", "/cache/snapshots/b.parquet"))
_OF_FOLDER = _Task(None)


def _replace_engines(monkeypatch: pytest.MonkeyPatch, cpus: dict[str, int]) -> None:
    def in_ray_data(fn: Any, items: dict[int, Any], here: bool) -> list[tuple[int, Outcome]]:
        return [(n, Outcome((task, "here" if here else "all"))) for n, task in items.items()]

    def in_tasks(fn: Any, items: dict[int, Any]) -> list[tuple[int, Outcome]]:
        return [(n, Outcome((task, "plain"))) for n, task in items.items()]

    monkeypatch.setattr(raygnn.runtime.ingest, "lent_cpus", lambda: ("here", cpus))
    monkeypatch.setattr(raygnn.runtime.ingest, "_fit_object_stores", lambda *_: True)
    monkeypatch.setattr(raygnn.runtime.ingest, "run_in_ray_data", in_ray_data)
    monkeypatch.setattr(raygnn.runtime.ingest, "run_in_tasks", in_tasks)


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        ({"here": 4, "there": 8}, {_REMOTE: "all", _LOCAL: "here", _OF_FOLDER: "threads"}),
        ({"here": 0, "there": 8}, {_REMOTE: "all", _LOCAL: "threads", _OF_FOLDER: "threads"}),
        ({"here": 4}, {_REMOTE: "here", _LOCAL: "here", _OF_FOLDER: "threads"}),
    ],
)
def test_tables_of_a_bucket_are_read_by_all_nodes_beside_local_ones(monkeypatch, cpus, expected):
    _replace_engines(monkeypatch, cpus)
    tasks = [_OF_FOLDER, _REMOTE, _LOCAL, _REMOTE]
    found = on_ray(lambda task: (task, "threads"), tasks, "reading")
    assert found == [(task, expected[task]) for task in tasks]


@pytest.mark.parametrize(
    ("cpus", "files", "expected"),
    [
        ({"here": 4, "there": 8}, _REMOTE.files, "all"),
        ({"here": 4, "there": 8}, (), "plain"),
        ({"here": 4}, (), "done"),
    ],
)
def test_tasks_that_read_no_table_are_sent_their_inputs_in_plain_tasks(
    monkeypatch, cpus, files, expected
):
    _replace_engines(monkeypatch, cpus)
    task = SimpleNamespace(files=files, inputs=())
    fn = OnAnyNode[Any, Any](lambda task, arrays, write: (task, "done"))
    assert on_ray(fn, [task], "sorting") == [(task, expected)]
