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


def test_engine_steps(harness, work):
    importlib.import_module("engine_steps").main(["--work", str(work), "--threads", "1"])
    rows = rows_of(work, "engine_steps")
    assert rows["ready batches"]["value"] > 0
    assert rows["1 sampler threads"]["value"] > 0


def test_neighborhoods(harness, work):
    importlib.import_module("neighborhoods").main(["--work", str(work)])
    rows = rows_of(work, "neighborhoods")
    assert (
        0 < rows["nodes of a batch, labor"]["value"] <= rows["nodes of a batch, uniform"]["value"]
    )
    assert rows["step, labor"]["value"] > 0
    assert rows["personalised PageRank"]["note"].endswith("from 400 nodes")


def test_sampling(harness, work):
    importlib.import_module("sampling").main(["--work", str(work)])
    rows = rows_of(work, "sampling")
    ours = rows["sample, uniform, 1 thread"]
    assert ours["value"] > 0
    assert rows["sample, weighted"]["ratio"] == pytest.approx(
        rows["sample, weighted"]["value"] / ours["value"]
    )
    assert {"sample, temporal", "sample, hetero", "gather of features"} <= set(rows)


def test_training(harness, work):
    training = importlib.import_module("training")
    training.main(["--work", str(work), "--steps-only", "--threads", "1"])
    rows = rows_of(work, "training")
    cached = rows["step, cached"]["value"]
    assert rows["step, live"]["ratio"] == pytest.approx(rows["step, live"]["value"] / cached)
    assert rows["PyG's layers, trimmed, cached"]["ratio"] > 0
    assert rows["the same, the device holds features"]["value"] > 0


def test_presampled(harness, work):
    importlib.import_module("presampled").main(["--work", str(work)])
    rows = rows_of(work, "presampled")
    step = rows["a step, batches there"]["value"]
    read = rows["a neighborhood read"]
    assert read["ratio"] == pytest.approx(read["value"] / step)
    assert rows["stored: a batch"]["value"] > 0


def test_encoders(harness, work):
    encoders = importlib.import_module("encoders")
    encoders.main(["--work", str(work)])
    rows = rows_of(work, "encoders")
    for name in (*encoders.HOMOGENEOUS, *encoders.HETEROGENEOUS):
        ours, theirs = rows[name], rows.get(f"{name}, PyG trimmed")
        if name != "SimpleHGN":
            assert theirs["ratio"] == pytest.approx(theirs["value"] / ours["value"])


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


def test_link_steps(harness, work):
    importlib.import_module("link_steps").main(["--work", str(work)])
    assert rows_of(work, "link_steps")["step of links"]["value"] > 0


def test_pyg_does_without_operators_that_its_pyg_lib_lacks(monkeypatch):
    encoders = importlib.import_module("encoders")
    monkeypatch.setattr(encoders.pyg_typing, "WITH_SEGMM", True)
    encoders.use_built_operators()
    assert not encoders.pyg_typing.WITH_SEGMM


def test_device_sampler(harness, work):
    importlib.import_module("device_sampler").main(["--work", str(work), "--device", "cpu"])
    rows = rows_of(work, "device_sampler")
    assert rows["device, operators"]["value"] > 0
    assert rows["batches equal to the host's"]["value"] > 0


def test_exact_inference(harness, work):
    importlib.import_module("exact_inference").main(["--work", str(work)])
    assert rows_of(work, "exact_inference")["all nodes, exact"]["value"] > 0


def test_larger_than_memory(harness, work):
    module = importlib.import_module("larger_than_memory")
    scale = module.scale_of(2000, 32)
    found = module.train(scale, work, "int8", "for-random-reads", 60)
    assert found["seeds_per_s"] > 0
    assert found["bundle_bytes"] > 2000 * 128


def test_learned_rows(harness, work):
    module = importlib.import_module("learned_rows")
    module.main(["--work", str(work), "--rounds", "1"])
    rows = rows_of(work, "learned_rows")
    shared = rows["0.05 M rows, sparse, shared"]
    assert shared["ratio"] == pytest.approx(
        shared["value"] / rows["0.05 M rows, sparse, whole"]["value"]
    )
    held = rows["0.05 M rows, sparse, shared: held by a rank"]["value"]
    assert held == pytest.approx(
        rows["0.05 M rows, sparse, whole: held by a rank"]["value"] / 2, rel=0.1
    )


def test_sparse_features(harness, work, monkeypatch):
    module = importlib.import_module("sparse_features")
    monkeypatch.setitem(module._NODES_AND_EDGES, "smoke", (300, 3000))
    module.main(["--work", str(work)])
    rows = rows_of(work, "sparse_features")
    both = rows["batch, sparse"]["value"] + rows["step, sparse"]["value"]
    assert rows["both, sparse"]["value"] == pytest.approx(both)


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


def test_training_rows(harness, work):
    arguments = ["--work", str(work), "--rows", "50000", "--only", "reads"]
    importlib.import_module("training_rows").main(arguments)
    rows = rows_of(work, "training_rows")
    assert all(rows[f"50,000 rows, {how}"]["value"] > 0 for how in ("in windows", "any order"))


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
