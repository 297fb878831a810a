"""The ingest in tasks of Ray: the same bytes and the same errors as in this process."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray

import raygnn.runtime.ingest
from raygnn.data.bundle_record import RECORD_NAME
from raygnn.data.ingest import pieces
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.ingest.schedule import Schedule
from raygnn.errors import DataError
from raygnn.runtime.ingest import _build_on, on_ray
from tests.errors import raises
from tests.folders import contents
from tests.graph_writer import cut, write_graph
from tests.tiers import slow

pytestmark = pytest.mark.ray


# As several nodes work: rows travel to the process that writes them.
on_all_nodes = partial(on_ray, is_shared=True)
SCHEDULES = pytest.mark.parametrize("schedule", [on_all_nodes, *slow(on_ray)])


def _graph(folder: Path, num_nodes: int = 200, num_edges: int = 3000) -> Path:
    rng = np.random.default_rng(0)
    ids = np.array([f"node-{i}" for i in rng.permutation(num_nodes)])
    nodes = pa.table(
        {
            "id": ids,
            "x": list(rng.normal(size=(num_nodes, 8)).astype("f4")),
            "y": pa.array(rng.choice(["a", "b", "c"], num_nodes)),
            "i": [[int(i % 5)] * int(i % 3) for i in range(num_nodes)],
        }
    )
    edges = pa.table(
        {
            "s": rng.choice(ids, num_edges),
            "t": rng.choice(ids, num_edges),
            "when": rng.integers(0, 9, num_edges),
        }
    )
    return write_graph(
        folder,
        cut(nodes, 3),
        cut(edges, 3),
        {"features": {"x": "x", "z": {"indices": "i", "dim": 5}}, "labels": {"y": "y"}},
        {"time": "when", "directed": False},
    )


@SCHEDULES
def test_bundle_is_the_same_byte_for_byte(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Schedule
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 20_000)
    graph = _graph(tmp_path / "graph")
    here = ingest(graph, cache_dir=tmp_path / "here")
    there = ingest(graph, cache_dir=tmp_path / "there", schedule=schedule)
    assert contents(here.path) == contents(there.path)


@pytest.mark.slow
@SCHEDULES
def test_fitted_columns_of_csv_files_are_the_same(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Schedule
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    rng = np.random.default_rng(0)
    folder = tmp_path / "graph"
    folder.mkdir()
    for i in range(3):
        rows = [f"{100 * i + k},{rng.normal()},{rng.choice(['red', 'blue'])}" for k in range(100)]
        (folder / f"nodes-{i}.csv").write_text("\n".join(["id,price,color", *rows]))
    links = [f"{rng.integers(300)},{rng.integers(300)}" for _ in range(900)]
    (folder / "links.csv").write_text("\n".join(["s,t", *links]))
    (folder / "graph.yaml").write_text(
        """
        format: raygnn/graph-v1
        node_types:
          thing:
            files: nodes-*.csv
            id: id
            features:
              x:
                columns:
                  - {column: price, transform: rank_gauss}
                  - {column: color, transform: one_hot}
        edge_types: [{type: [thing, to, thing], files: links.csv, source: s, target: t}]
        """
    )
    here = ingest(folder, cache_dir=tmp_path / "here")
    there = ingest(folder, cache_dir=tmp_path / "there", schedule=schedule)
    assert contents(here.path) == contents(there.path)


@pytest.mark.slow
def test_one_node_reads_where_ids_need_much_of_an_object_store(
    ray_session: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = _graph(tmp_path / "graph")
    here = ingest(graph, cache_dir=tmp_path / "here")
    monkeypatch.setattr(raygnn.runtime.ingest, "_smallest_store_bytes", lambda: 1e-9)
    there = ingest(graph, cache_dir=tmp_path / "there", schedule=on_all_nodes)
    assert contents(here.path) == contents(there.path)
    assert "reading edges on this node alone: tasks need" in capsys.readouterr().out


@SCHEDULES
def test_errors_arrive_as_they_were_raised(
    ray_session: None, tmp_path: Path, schedule: Schedule
) -> None:
    graph = _graph(tmp_path / "graph")
    (graph / "nodes" / "part-3.csv").write_text("id,x,y,i\n1\n")
    text = (graph / "graph.yaml").read_text()
    (graph / "graph.yaml").write_text(text.replace("nodes/*.parquet", "nodes/*"))
    with raises("table-csv-unreadable", "nodes/part-3.csv", "CSV") as raised:
        ingest(graph, cache_dir=tmp_path / "cache", schedule=schedule)
    assert type(raised.value) is DataError
    assert not list((tmp_path / "cache" / "bundles").glob(".building-*"))


@pytest.mark.slow
def test_another_node_ingests_and_sends_the_bundle(ray_session: None, tmp_path: Path) -> None:
    graph, there = str(_graph(tmp_path / "graph")), str(tmp_path / "there")
    here = ingest(graph, cache_dir=tmp_path / "here")
    node_id = ray.get_runtime_context().get_node_id()
    _build_on(node_id, graph, IngestOptions(), there)(tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(here.path)
    assert len(list((tmp_path / "there" / "bundles").glob(f"*/{RECORD_NAME}"))) == 1
    with raises("data-file-missing", "nowhere"):
        _build_on(node_id, str(tmp_path / "nowhere"), IngestOptions(), there)
    with raises("data-ingest-failed", "e" * len(node_id)):
        _build_on("e" * len(node_id), graph, IngestOptions(), there)


@pytest.mark.slow
def test_another_node_may_share_the_cache(ray_session: None, tmp_path: Path) -> None:
    """Which it locks while it builds, as this one does while it copies."""
    graph, cache = str(_graph(tmp_path / "graph")), str(tmp_path / "cache")
    node_id = ray.get_runtime_context().get_node_id()
    build = partial(_build_on, node_id, graph, IngestOptions(), cache)
    shared = ingest(graph, cache_dir=cache, elsewhere=build)
    here = ingest(graph, cache_dir=tmp_path / "here")
    assert contents(shared.path) == contents(here.path)


def _raise(item: int) -> int:
    if item:
        raise ZeroDivisionError(f"item {item}")
    return item


@pytest.mark.slow
def test_other_failures_name_their_cause(ray_session: None) -> None:
    with raises("data-ingest-failed", "dividing", "ZeroDivisionError: item 1"):
        on_all_nodes(_raise, [0, 1, 2], "dividing")
    assert on_all_nodes(_raise, [0] * 300, "dividing") == [0] * 300
    assert on_all_nodes(_raise, [], "dividing") == []
    with raises("data-ingest-failed", "while ending"):
        on_all_nodes(os._exit, [1], "ending")
