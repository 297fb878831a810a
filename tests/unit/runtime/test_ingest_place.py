"""Which node ingests a graph: the driver's, or one that lends CPUs; without a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import ray

import raygnn.runtime.ingest
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.ingest.schedule import OnAnyNode
from raygnn.runtime.ingest import ingest_on_cluster, on_ray
from raygnn.runtime.ray_tasks import Outcome


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
