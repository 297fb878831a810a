"""Edge prediction learns, does not leak, and is the same for 1 and 2 workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raygnn
import raygnn.train
from raygnn import infer
from raygnn.config import load_config
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.edge_prediction.task import EdgePrediction
from raygnn.prepare.synthetic import synthetic_tables
from raygnn.runtime.data_source import open_bundle
from tests.errors import raises
from tests.small_runs import check_workers_agree, small_config
from tests.tiers import slow

EDGE = "user__rates__film"
MODEL = {"type": "Hetero", "args": {"hidden_channels": 8, "dropout": 0.3}}
REVERSE = IngestOptions(reverse_edges=True)


def _ratings(folder: Path, **changes: Any) -> Path:
    given = {"num_users": 80, "num_films": 40, "num_ratings": 1200}
    tables = synthetic_tables("ratings", **{**given, **changes})
    write_tables(tables, str(folder / "tables"), num_shards=2)
    return folder / "tables"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _ratings(tmp_path_factory.mktemp("ratings"))


@pytest.fixture(scope="module")
def bundle_path(graph: Path) -> str:
    return str(ingest(str(graph), REVERSE, str(graph.parent / "cache")).path)


def _config(folder: Path, graph: Path, world_size: int = 0, **changes: Any) -> dict[str, Any]:
    settings = {
        "task": {"type": "edge_prediction", "args": {"edge_type": EDGE}},
        "metrics": [],
        "data": {
            "uri": str(graph),
            "reverse_edges": True,
            "cache_dir": str(folder / "cache"),
            "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]},
        },
        "model": MODEL,
        "loader": {"batch_size": 32, "eval_batch_size": 64},
        "scaling__num_workers": world_size,
        "optimizer__args": {"lr": 0.01},
    }
    return small_config(folder, **{**settings, **changes})


@pytest.mark.parametrize("eval_mode", ["sampled", "exact"])
def test_workers_agree(ranks, graph, bundle_path, tmp_path, eval_mode):
    def config(folder: Path, size: int) -> dict[str, Any]:
        changes = {"training__global_batch_size": 192, "training__eval": eval_mode}
        return _config(folder, graph, size, **changes)

    baseline = "baseline/mean/test/r2"
    names = ("train/loss", "val/loss", "val/mae", "val/rmse", "test/r2", baseline)
    metrics, _ = check_workers_agree(ranks, config, tmp_path, bundle_path, *names)
    assert metrics[baseline] < 0.01


def test_exact_evaluation_is_that_of_full_neighborhoods(tmp_path, graph):
    settings = {"sampling__fanouts": [-1, -1], "training__max_epochs": 1}
    found = [
        raygnn.train.fit(_config(tmp_path / how, graph, training__eval=how, **settings)).metrics
        for how in ("exact", "sampled")
    ]
    for name in ("test/loss", "test/mae", "test/r2"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-4)


def _coins(folder: Path, seed: int, *, with_times: bool) -> Path:
    """Edges with labels at random, which are a feature of the same edges too."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, 40 * 40, 700))
    coin = rng.integers(0, 2, len(pairs))
    nodes = {
        name: node_rows(np.arange(40), {"x": rng.normal(size=(40, 4)).astype(np.float32)})
        for name in ("user", "film")
    }
    edges = edge_rows(
        pairs // 40,
        pairs % 40,
        {"edge_attr": coin.astype(np.float32)},
        time=rng.integers(0, 10**6, len(pairs)) if with_times else None,
        labels={"coin": coin},
    )
    tables = GraphTables(nodes, {("user", "rates", "film"): edges})
    write_tables(tables, str(folder / "tables"))
    return folder / "tables"


@pytest.mark.parametrize("form", ["hash", *slow("temporal")])
def test_labels_of_the_seeds_do_not_reach_the_model(tmp_path, form):
    """Messages carry the labels of their edges, so a seed among its own messages would show it."""
    is_timed, accuracy, predicted = form == "temporal", [], []
    splits = {"type": "hash", "fractions": [0.5, 0.1, 0.4]}
    if is_timed:
        splits = {"type": "temporal", "quantiles": [0.5, 0.6]}
    for seed in range(3):
        graph = _coins(tmp_path / str(seed), seed, with_times=is_timed)
        config = _config(
            tmp_path / str(seed),
            graph,
            seed=seed,
            data__splits=splits,
            task__args={"edge_type": EDGE, "edge_feature": "edge_attr"},
            model={"type": "Hetero", "args": {"conv": "GINE", "hidden_channels": 16}},
            sampling={"fanouts": [-1, -1], **({"temporal": {}} if is_timed else {})},
            training__max_epochs=4,
        )
        accuracy.append(raygnn.train.fit(config).metrics["test/accuracy"])
        # On the whole graph each edge is predicted without itself.
        found = raygnn.load(tmp_path / str(seed) / "run").predict(str(graph))
        rated = pq.read_table(str(graph / "edges" / "rates"))
        ends = zip(rated["source"].to_pylist(), rated["target"].to_pylist(), strict=True)
        coin = dict(zip(ends, rated["coin"].to_pylist(), strict=True))
        ends = zip(found["source_id"].tolist(), found["target_id"].tolist(), strict=True)
        truth = np.array([coin[end] for end in ends])
        predicted.append(np.mean(truth == found["prediction"]))
    assert abs(np.mean(accuracy) - 0.5) < 4 * 0.5 / np.sqrt(3 * 200)
    # The edges of training are learned by heart to a part; with their labels, all would be right.
    assert np.mean(predicted) < 0.8


def test_nodes_of_the_last_hop_are_shared_by_edges_of_all_times(tmp_path):
    graph = _coins(tmp_path, 0, with_times=True)
    loaded = load_config(
        _config(
            tmp_path,
            graph,
            data__splits={"type": "temporal", "quantiles": [0.5, 0.6]},
            task__args={"edge_type": EDGE},
            sampling={"fanouts": [4, 4], "temporal": {"strategy": "last"}, "disjoint": True},
            model={**MODEL, "relative_time": True},
        )
    )
    task = EdgePrediction(**loaded.config.task.args)
    task.setup(TaskEnvironment(loaded, open_bundle(loaded, None), 0, 1, torch.device("cpu")))
    model = task.build_model().eval()
    loader = task.build_loader("test")
    shared = loader.build(0, 0)
    loader._shared_leaves = frozenset()
    apart = loader.build(0, 0)
    assert 2 * len(shared.nodes["film"].n_id) < len(apart.nodes["film"].n_id)
    with torch.no_grad():
        # Products of matrices may round otherwise with another number of rows.
        torch.testing.assert_close(*(model(batch)[0] for batch in (shared, apart)))


@pytest.mark.slow
def test_a_later_edge_of_the_same_pair_does_not_reveal_the_label(tmp_path):
    """A receipt follows each payment, and its amount is the payment's label."""
    rng, accuracy = np.random.default_rng(0), []
    nodes = {"n": node_rows(np.arange(40), {"x": rng.normal(size=(40, 2)).astype(np.float32)})}
    for seed in range(2):
        ends, coin = rng.integers(0, 40, (2, 1000)), rng.integers(0, 2, 1000)
        ends, time = np.tile(ends, 2), np.concatenate([np.arange(1000), np.arange(1000) + 0.5])
        amount = np.concatenate([rng.integers(0, 2, 1000), coin]).astype(np.float32)
        label = pa.array([*coin.tolist(), *[None] * 1000])
        edges = edge_rows(*ends, {"edge_attr": amount}, labels={"coin": label}, time=time)
        write_tables(GraphTables(nodes, {("n", "pays", "n"): edges}), str(tmp_path / f"{seed}"))
        config = _config(
            tmp_path / f"run{seed}",
            tmp_path / f"{seed}",
            seed=seed,
            task__args={"label": "coin"},
            data__splits={"type": "temporal", "quantiles": [0.5, 0.6]},
            sampling={"fanouts": [5]},
            training__max_epochs=5,
        )
        result = raygnn.train.fit(config)
        assert result.model.spec.relative_time.edge_features == ("edge_attr",)
        accuracy.append(result.metrics["test/accuracy"])
        boosted = result.metrics.get("baseline/lightgbm/test/accuracy", 0.5)
        assert abs(boosted - 0.5) < 3 * 0.5 / np.sqrt(400)
    assert abs(np.mean(accuracy) - 0.5) < 3 * 0.5 / np.sqrt(2 * 400)


def test_classes_are_predicted_to_tables_by_the_ends_of_edges(tmp_path):
    graph = _ratings(tmp_path, classes=True)
    config = _config(tmp_path, graph, training__max_epochs=6)
    metrics = raygnn.train.fit(config).metrics
    assert metrics["test/auroc"] > 0.6
    run = tmp_path / "run"
    assert set(json.loads((run / "metrics.json").read_text())["per_class"]["test"]) == set("12345")

    rated = pq.read_table(str(graph / "edges" / "rates"))
    given = set(zip(rated["source"].to_pylist(), rated["target"].to_pylist(), strict=True))
    options = ["--data.uri", str(graph), "--scaling.num_workers", "0", "--training.eval", "exact"]
    written = infer.predict(run, tmp_path / "out", options, rows_per_file=200)
    table = pq.read_table(written.table_uri(EDGE))
    names = ["row", "source_id", "target_id", "time", "prediction", "probability"]
    assert table.column_names == names
    assert sorted(table["row"].to_pylist()) == list(range(rated.num_rows))
    joined = rated.take(table["row"])
    for name, of_table in (("source_id", "source"), ("target_id", "target"), ("time", "time")):
        assert table[name].equals(joined[of_table])
    ends = zip(table["source_id"].to_pylist(), table["target_id"].to_pylist(), strict=True)
    assert set(ends) == given
    assert written.manifest["classes"] == list("12345")

    model = raygnn.load(run)
    opened = model.open(str(graph), exact=True)
    every = opened.predict()
    assert every.arrow.equals(table.combine_chunks())
    # A pair that the graph has, asked for by its ends alone, is left out of its messages too.
    some = opened.predict([(every["source_id"][i], every["target_id"][i]) for i in (7, 3, 7)])
    np.testing.assert_allclose(some["probability"], every["probability"][[7, 3, 7]], rtol=1e-4)
    shares = opened.predict(what="probabilities")["probability"]
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert opened.embed(node_type="film").columns == ["id", "embedding"]
    with raises("infer-score-edges"):
        opened.top_k([1001], 3)
    judged = model.evaluate(str(graph))
    assert judged["accuracy"] == pytest.approx(metrics["test/accuracy"], abs=1e-6)
    with raises("infer-node-type-other", "film"):
        infer.predict(run, tmp_path / "no", options, what="predictions", node_types=["film"])


def test_label_edges_of_another_graph_are_predicted(tmp_path):
    graph = _ratings(tmp_path / "ratings")
    raygnn.train.fit(_config(tmp_path, graph))
    tables = synthetic_tables("ratings", num_users=80, num_films=40, num_ratings=300, seed=5)
    asked = edge_rows(np.array([1001, 1008]), np.array([1015, 1001]))
    key = (("user", "rates", "film"), "positive")
    other = GraphTables(tables.nodes, tables.edges, label_edges={key: asked})
    write_tables(other, str(tmp_path / "other"))
    model = raygnn.load(tmp_path / "run")
    found = model.predict(str(tmp_path / "other"))
    assert found["source_id"].tolist() == [1001, 1008]
    assert found["target_id"].tolist() == [1015, 1001]
    again = model.predict(str(tmp_path / "other"), [(1008, 1001), (1001, 1015)])
    np.testing.assert_allclose(again["prediction"], found["prediction"][::-1], rtol=1e-4)
    for not_pairs in ([1001, 1008], ["ab", "cd"]):
        with raises("model-pairs"):
            model.predict(str(tmp_path / "other"), not_pairs)
    with raises("infer-what-regression", "rating"):
        model.predict(str(tmp_path / "other"), what="probabilities")


def test_a_rating_ranks_pairs_by_its_prediction(tmp_path, graph):
    """Of the GNN, which alone ranks."""
    raygnn.train.fit(_config(tmp_path, graph, task__args={"edge_type": EDGE, "blend": False}))
    opened = raygnn.load(tmp_path / "run").open(str(graph), exact=True)
    best = opened.top_k([1001, 1008], 20, filter_known=True).to_pandas()
    assert (best.groupby("anchor_id").score.diff().dropna() <= 0).all()
    pairs = list(zip(best.anchor_id, best.neighbor_id, strict=True))
    np.testing.assert_allclose(opened.predict(pairs)["prediction"], best.score, rtol=1e-4)
    np.testing.assert_allclose(opened.score(pairs)["score"], best.score, rtol=1e-6)
    users = opened.top_k([1001], 3, target_type="user").to_pandas()  # nearest by embedding
    assert 1001 not in set(users.neighbor_id)


def _parity(folder: Path, *, directed: bool) -> Path:
    """Payments within one type; an own column and the nodes tell the class together."""
    rng = np.random.default_rng(0)
    side = rng.integers(0, 2, 60)
    ends = rng.integers(0, 60, (2, 800))
    own = rng.integers(0, 2, 800)
    words = pa.array(np.array(["no", "yes"])[(own + side[ends[0]]) % 2])
    noise = rng.normal(size=60)
    nodes = {"n": node_rows(np.arange(60), {"x": np.stack([side, noise], 1).astype(np.float32)})}
    edges = edge_rows(*ends, {"own": own.astype(np.float32)}, labels={"word": words})
    edges = type(edges)(**{**edges.__dict__, "directed": directed})
    write_tables(GraphTables(nodes, {("n", "to", "n"): edges}), str(folder / "tables"))
    return folder / "tables"


@pytest.mark.slow
def test_the_edges_own_columns_are_read(tmp_path):
    graph, found = _parity(tmp_path, directed=True), {}
    for inputs in (None, []):
        config = _config(
            tmp_path / str(inputs),
            graph,
            task__args={"inputs": inputs},
            data={"uri": str(graph), "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]}},
            model={"type": "GraphSAGE", "args": {"hidden_channels": 16}},
            training__max_epochs=12,
        )
        found[str(inputs)] = raygnn.train.fit(config).metrics["test/accuracy"]
    assert found["None"] > 0.9
    assert found["[]"] < 0.65
    model = raygnn.load(tmp_path / "None" / "run")
    assert len(model.predict(str(graph))) == 800
    with raises("model-pairs-features", "own"):
        model.predict(str(graph), [(0, 1)])


def test_undirected_edges_are_predicted_once_in_the_direction_of_their_row(tmp_path):
    graph = _parity(tmp_path, directed=False)
    config = _config(
        tmp_path,
        graph,
        task__args={},
        data={"uri": str(graph), "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]}},
        model={"type": "GraphSAGE", "args": {"hidden_channels": 8}},
        loader={"batch_size": 32},
    )
    raygnn.train.fit(config)
    found = raygnn.load(tmp_path / "run").predict(str(graph))
    rows = pq.read_table(str(graph / "edges" / "to")).take(pa.array(found["row"])).to_pydict()
    assert sorted(found["row"]) == list(range(800))
    assert found["source_id"].tolist() == rows["source"]
    assert found["target_id"].tolist() == rows["target"]
