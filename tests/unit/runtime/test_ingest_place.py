"""Which node ingests a graph: the driver's, or one that lends CPUs; without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray

import raygnn.runtime.ingest
from raygnn.data.ingest.build_bundle import IngestOptions
from raygnn.data.ingest.schedule import in_process
from raygnn.runtime.ingest import by_all_nodes, ingest_on_cluster, on_this_node


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
    ("cpus", "uri", "schedule", "node"),
    [
        ({"here": 4, "there": 8}, "gs://bucket/graph", by_all_nodes, None),
        ({"here": 4, "there": 8}, "/data/graph", on_this_node, None),
        ({"here": 4, "there": 0}, "gs://bucket/graph", on_this_node, None),
        ({"here": 0, "there": 8, "more": 16}, "gs://bucket/graph", in_process, "more"),
        ({"here": 0, "there": 8}, "/data/graph", in_process, None),
        ({"here": 0}, "gs://bucket/graph", in_process, None),
    ],
)
def test_the_node_that_ingests(asked, monkeypatch, cpus, uri, schedule, node):
    gone = {"NodeID": "gone", "Alive": False, "Resources": {"CPU": 99.0}}
    nodes = [{"NodeID": n, "Alive": True, "Resources": {"CPU": c}} for n, c in cpus.items()]
    monkeypatch.setattr(ray, "nodes", lambda: [gone, *nodes])
    ingest_on_cluster(uri, IngestOptions(), None)
    assert asked["schedule"] is schedule
    assert asked["min_scheduled_bytes"] == raygnn.runtime.ingest.MIN_SCHEDULED_BYTES
    assert (asked["elsewhere"].args[0] if asked["elsewhere"] else None) == node
