"""The benchmarks of speed and memory: each runs on a tiny graph, and says what it has measured."""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from raygnn.data.edge_types import edge_type_name

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = importlib.import_module("harness")
    tiny = module.Scale("smoke", 400, 4000, 8, 3, 8, 32, (4, 3, 2), 1)
    monkeypatch.setitem(module.SCALES, "smoke", tiny)
    return module


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all, so that graphs are made once."""
    return tmp_path_factory.mktemp("benchmarks")


def rows_of(work: Path, name: str) -> dict[str, dict[str, Any]]:
    record = json.loads((work / f"{name}-smoke.json").read_text())
    return {row["what"]: row for row in record["rows"]}


@pytest.mark.parametrize("is_hetero", [False, True])
def test_rmat_graphs_have_the_edges_they_promise(work, is_hetero):
    rmat_graph = importlib.import_module("rmat_graph")
    graph = rmat_graph.RmatGraph(300, 3000, 4, 3, columns=("weight", "time"), is_hetero=is_hetero)
    bundle = graph.bundle(work)
    assert sum(bundle.num_edges(edge_type) for edge_type in bundle.edge_types) == 3000
    assert sum(bundle.num_nodes(node_type) for node_type in bundle.node_types) == 300
    for edge_type in bundle.edge_types:
        assert set(bundle.columns(edge_type)) == {"weight", "time"}, edge_type_name(edge_type)
        in_degrees = np.diff(bundle.csc(edge_type).indptr)
        assert in_degrees.max() > 3 * in_degrees.mean()  # there are hubs


def test_rmat_edges_drawn_in_pieces_are_those_drawn_at_once():
    from raygnn.prepare.synthetic.node_graphs import draw_rmat_edges

    whole = draw_rmat_edges(1000, 500, 0.57, 0.19, 0.19, 3)
    pieces = [draw_rmat_edges(1000, 250, 0.57, 0.19, 0.19, 3, first) for first in (0, 250)]
    for end in (0, 1):
        assert np.array_equal(whole[end], np.concatenate([piece[end] for piece in pieces]))


#: Arguments of each benchmark, and some of the rows that it writes.
RUNS: dict[str, tuple[list[str], list[str]]] = {
    "device_sampler": (["--device", "cpu"], ["device, operators", "batches equal to the host's"]),
    "encoders": ([], ["GraphSAGE", "GraphSAGE, PyG trimmed", "HGT, PyG trimmed", "SimpleHGN"]),
    "engine_steps": (["--threads", "1"], ["ready batches", "1 sampler threads"]),
    "exact_inference": ([], ["all nodes, exact"]),
    "learned_rows": (
        ["--rounds", "1"],
        ["0.05 M rows, sparse, shared", "0.05 M rows, sparse, shared: held by a rank"],
    ),
    "link_steps": ([], ["step of links"]),
    "neighborhoods": (
        [],
        ["nodes of a batch, labor", "step, labor", "personalised PageRank"],
    ),
    "presampled": ([], ["a step, batches there", "a neighborhood read", "stored: a batch"]),
    "sampling": (
        [],
        ["sample, uniform, 1 thread", "sample, weighted", "sample, temporal", "sample, hetero"],
    ),
    "sparse_features": ([], ["batch, sparse", "step, sparse", "both, sparse"]),
    "training": (
        ["--steps-only", "--threads", "1"],
        ["step, live", "PyG's layers, trimmed, cached", "the same, the device holds features"],
    ),
    "training_rows": (
        ["--rows", "50000", "--only", "reads"],
        ["50,000 rows, in windows", "50,000 rows, any order"],
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_measures(harness, work, monkeypatch, name):
    arguments, expected = RUNS[name]
    module = importlib.import_module(name)
    if name == "sparse_features":
        monkeypatch.setitem(module._NODES_AND_EDGES, "smoke", (300, 3000))
    module.main(["--work", str(work), *arguments])
    rows = rows_of(work, name)
    assert all(rows[what]["value"] > 0 for what in expected)
    assert all(row["ratio"] > 0 for row in rows.values() if row.get("ratio") is not None)


def test_trimmed_layers_of_pyg_give_the_scores_of_the_whole_subgraph(harness, work):
    """The peer computes what it would without trimming: an honest one."""
    encoders = importlib.import_module("encoders")
    scale = harness.SCALES["smoke"]
    graph = encoders.Graph.drawn(scale, work, "cpu", is_hetero=True)
    for name in ("Hetero", "HGT", "RGCN"):
        model = encoders.PygHetero(partial(encoders.pyg_layer, name, 8), scale).eval()
        batch = graph.batches[0]
        x = {t: model.inputs[t](nodes.columns["x"]) for t, nodes in batch.nodes.items()}
        edges = {t: e.edge_index for t, e in batch.edges.items()}
        for layer in model.layers:
            x = {t: rows.relu() for t, rows in layer(x, edges).items()}
        whole = model.head(x[batch.node_type][: len(batch.y)])
        torch.testing.assert_close(model(batch), whole, rtol=1e-4, atol=1e-4)


def test_pyg_does_without_operators_that_its_pyg_lib_lacks(monkeypatch):
    encoders = importlib.import_module("encoders")
    monkeypatch.setattr(encoders.pyg_typing, "WITH_SEGMM", True)
    encoders.use_built_operators()
    assert not encoders.pyg_typing.WITH_SEGMM


def test_larger_than_memory(harness, work):
    module = importlib.import_module("larger_than_memory")
    scale = module.scale_of(2000, 32)
    found = module.train(scale, work, "for-random-reads", 60)
    assert found["seeds_per_s"] > 0
    assert found["bundle_bytes"] > 2000 * 128


def test_a_worker_of_the_memory_benchmark_trains_and_counts_its_own_pages(harness, work):
    worker = importlib.import_module("memory_worker")
    rmat_graph = importlib.import_module("rmat_graph")
    scale = harness.SCALES["smoke"]
    bundle = rmat_graph.RmatGraph(400, 4000, 8, 3, columns=("weight",)).bundle(work)
    for train in (worker.train_raygnn, worker.train_pyg):
        assert train(scale, bundle) is not None
    assert worker.proportional_bytes() > 10**7


def test_scaling(harness, work):
    scaling = importlib.import_module("scaling")
    scale = harness.SCALES["smoke"]
    found = [scaling.measure(size, scale, work, keeps_tables=False) for size in (2000, 8000)]
    rows = scaling.scaling_rows(found)
    assert rows[0].what == "2,000 edges: ingest"
    assert all(row.value > 0 for row in rows)
    assert "<path" in scaling.plot(found)
    assert not (work / "tables" / scaling.graph_of(2000).name).exists()


def test_ingest(harness, work):
    module = importlib.import_module("ingest")
    scale = harness.SCALES["smoke"]
    for kind, write in (("strings", module.write_edges), ("binary", module.write_features)):
        amount = write(work / kind, kind, scale)
        found = module._ingest(work / kind, work / kind)
        rate, peak, again = module.rows_of(kind, amount, found, peer_s=1.0)
        assert rate.ratio == pytest.approx(1.0 / found.seconds)
        assert peak.value > 0
        assert again.value > 0
    module.sort_in_memory(work / "strings")
    module.read_only(work / "binary")


def test_raw_tables(tmp_path, monkeypatch):
    raw_tables = importlib.import_module("raw_tables")
    company = raw_tables.Company.drawn(2_000)
    chance = company.precision(np.zeros(2_000))
    assert chance == pytest.approx(company.fraud[company.is_test].mean())
    assert chance < company.rule(0) < company.rule(None)
    one_epoch = ("--training.max_epochs", "1")
    short = {what: (*one_epoch, *given) for what, given in raw_tables.OURS.items()}
    monkeypatch.setattr(raw_tables, "OURS", short)
    arguments = ["--work", str(tmp_path), "--scale", "smoke", "--seeds", "0"]
    assert raw_tables.main([*arguments, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == 10
    assert all(0 < value < 1 for values in found.values() for value in values)


def test_relational_aggregates_end_at_the_time_of_the_row(tmp_path):
    relational = importlib.import_module("relational")
    rng = np.random.default_rng(0)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(60), "D")
    orders = pd.DataFrame({"id": range(60), "user": rng.integers(0, 4, 60), "day": day})
    orders["price"] = rng.random(60)
    asked = pd.DataFrame({"user": rng.integers(0, 5, 30), "at": rng.choice(day, 30), "y": 1.0})
    tables = {
        "users": {"pkey": "user", "time_col": None, "fkeys": {}},
        "orders": {"pkey": "id", "time_col": "day", "fkeys": {"user": "users"}},
    }
    task = {"entity_table": "users", "entity_col": "user", "time_col": "at", "target_col": "y"}
    manifests = {"": {"tables": tables, "test_timestamp": "2020-02-01"}, "tasks/buys": task}
    for folder, manifest in manifests.items():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    (tmp_path / "db").mkdir()
    orders.sample(frac=1, random_state=0).to_parquet(tmp_path / "db/orders.parquet")
    pd.DataFrame({"user": range(5), "age": 30}).to_parquet(tmp_path / "db/users.parquet")
    for split in relational.SPLITS:
        asked.to_parquet(tmp_path / f"tasks/buys/{split}.parquet")
    question = relational.Question(tmp_path, "buys")
    for until in (None, question.test_start):
        found = question.aggregates(until)
        for i, row in question.rows.iterrows():
            end = row["at"] if until is None else min(row["at"], until)
            seen = orders[(orders["user"] == row["user"]) & (orders["day"] <= end)]
            if seen.empty:
                assert np.isnan(found["orders.count"][i])
                continue
            assert found["orders.count"][i] == len(seen)
            assert found["orders.price_mean"][i] == pytest.approx(seen["price"].mean())
            assert found["orders.price_last"][i] == seen["price"].iloc[-1]
            assert found["orders.age"][i] == (row["at"] - seen["day"].iloc[-1]).days
