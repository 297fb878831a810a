"""Link models rank by a linear recommender, alike in training, inference and for new nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic.link_graphs import likes
from tests.errors import raises
from tests.small_runs import small_config

NUM_USERS, NUM_FILMS = 200, 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("likes")
    tables = likes(num_users=NUM_USERS, num_films=NUM_FILMS, num_likes=4000, num_series=12)
    write_tables(tables, str(folder / "graph"))
    return folder


def _config(folder: Path, run: str, **changes: Any) -> dict[str, Any]:
    graph = {"uri": str(folder / "graph"), "cache_dir": str(folder / "cache")}
    splits = {"type": "hash", "fractions": [0.8, 0.1, 0.1]}
    common: dict[str, Any] = {
        "data": {**graph, "reverse_edges": True, "splits": splits},
        "task": {"type": "link_prediction", "args": {"num_random_negatives": 16}},
        "model": {"type": "Hetero", "args": {"hidden_channels": 8}},
        "metrics": [{"type": "mrr"}],
        "loader__batch_size": 512,
        "run__name": run,
        "scaling__num_workers": 0,
    }
    return small_config(folder, **common | changes)


@pytest.fixture(scope="module")
def metrics(folder: Path) -> dict[str, float]:
    return dict(raygnn.train.fit(_config(folder, "run")).metrics)


def _ndcg(metrics: dict[str, float], guess: str = "") -> float:
    return metrics[f"{guess}test/full_ndcg@20"]


def test_a_short_run_is_as_good_as_ease_and_better_than_popularity(
    metrics: dict[str, float],
) -> None:
    assert _ndcg(metrics) > _ndcg(metrics, "baseline/popularity/") + 0.02
    assert _ndcg(metrics) > _ndcg(metrics, "baseline/ease/") - 0.01


def test_ease_alone_is_a_model(folder: Path) -> None:
    found = dict(raygnn.train.fit(_config(folder, "ease", model="EASE")).metrics)
    assert _ndcg(found) > _ndcg(found, "baseline/ease/") - 0.01
    module = raygnn.load(str(folder / "ease")).module
    assert module.factors.weights[0] == 0
    history = (folder / "ease" / "history.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in history] == [0]  # nothing is learned


def test_a_loaded_model_has_the_metrics_of_the_run(folder: Path, metrics: dict[str, float]) -> None:
    found = raygnn.load(str(folder / "run")).evaluate(str(folder / "graph"))
    for name in ("mrr", "full_ndcg@20"):
        assert found[name] == pytest.approx(metrics[f"test/{name}"], abs=1e-6)


def test_tables_and_calls_give_the_same_neighbors(folder: Path, metrics: dict[str, float]) -> None:
    run, graph = str(folder / "run"), str(folder / "graph")
    users = pq.read_table(folder / "graph/nodes/user").column("id").to_pylist()[:7]
    data = ["--data.cache_dir", str(folder / "cache"), "--scaling.num_workers", "0"]
    written = raygnn.infer.top_k(
        run, str(folder / "out"), 5, users, overrides=["--data.uri", graph, *data]
    )
    table = pq.read_table(written.table_uri("neighbors"))
    model = raygnn.load(run)
    found = model.top_k(graph, users, k=5)
    assert table.column("neighbor_id").to_pylist() == list(found["neighbor_id"])
    assert table.column("score").to_pylist() == list(found["score"])
    pairs = list(zip(found["anchor_id"], found["neighbor_id"], strict=True))
    np.testing.assert_allclose(model.score(graph, pairs)["score"], found["score"], rtol=1e-4)


def test_a_new_user_is_recommended_what_one_with_the_same_links_is(
    folder: Path, metrics: dict[str, float]
) -> None:
    graph, model = str(folder / "graph"), raygnn.load(str(folder / "run"))
    users, likes = (pq.read_table(folder / "graph" / t) for t in ("nodes/user", "edges/likes"))
    user = users.slice(3, 1).to_pylist()[0]
    source, target = likes.column_names[:2]
    films = [row[target] for row in likes.to_pylist() if row[source] == user["id"]]
    new = {"id": user["id"] + 1, "x": np.frombuffer(user["x"], np.float32).tolist()}
    rows = {"user": [new]}, {"user__likes__film": [{source: new["id"], target: f} for f in films]}
    with model.extended(graph, *rows) as extended:
        found = extended.top_k([new["id"]], k=10)
    expected = model.top_k(graph, [user["id"]], k=10)
    assert list(found["neighbor_id"]) == list(expected["neighbor_id"])
    np.testing.assert_allclose(found["score"], expected["score"], rtol=1e-3)


def test_a_recommender_is_refused_where_it_does_not_fit(folder: Path) -> None:
    for model in ("EASE", {"type": "Hetero", "args": {"node_embeddings": True}}):
        config = _config(folder, "none", model=model, sampling__temporal={})
        with raises("model-link-rows"):
            raygnn.train.fit(config)
