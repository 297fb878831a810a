"""Popularity and chance of links, against brute force on the candidates of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.task import TaskEnvironment
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.prepare.synthetic import synthetic_tables
from tests.small_runs import run_rank, small_config

NUM_USERS, NUM_ITEMS, NUM_LINKS, K = 60, 40, 700, 12
KS = (1, 5, 10)


def _bundle(folder: Path, *, popular: bool, several: bool = False) -> Bundle:
    """Users and items that nothing but popularity relates."""
    rng = np.random.default_rng(0)
    share = 1 / np.arange(1, NUM_ITEMS + 1) if popular else np.ones(NUM_ITEMS)
    edges = {}
    for relation in ("buys", "likes") if several else ("buys",):
        user = rng.integers(0, NUM_USERS, NUM_LINKS)
        item = rng.choice(rng.permutation(NUM_ITEMS), NUM_LINKS, p=share / share.sum())
        time = rng.permutation(NUM_LINKS)
        edges["user", relation, "item"] = edge_rows(user, item, time=time)
    nodes = {
        "user": node_rows(np.arange(NUM_USERS), {"x": rng.random((NUM_USERS, 3), dtype="f")}),
        "item": node_rows(np.arange(NUM_ITEMS), {"x": rng.random((NUM_ITEMS, 3), dtype="f")}),
    }
    uri = write_tables(GraphTables(nodes, edges), str(folder / "tables"))
    return ingest(uri, IngestOptions(reverse_edges=True), str(folder / "cache"))


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "task": {
            "type": "link_prediction",
            "args": {
                "edge_type": "user__*__item",
                "num_random_negatives": 8,
                "num_random_negatives_eval": K,
            },
        },
        "data": {"splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]}},
        "model": {"type": "Hetero", "args": {"conv": "GraphSAGE", "out_channels": 4}},
        "sampling": {"fanouts": [2]},
        "loader": {"batch_size": 32, "eval_batch_size": 16},
        "training": {"max_steps": 1},
        "metrics": [],
        "scaling__num_workers": 0,
    }
    return small_config(folder, **{**settings, **changes})


def _baselines(metrics: dict[str, Any], split: str = "test") -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        if name.startswith("baseline/") and f"/{split}/" in name:
            _, guess, _, metric = name.split("/")
            found.setdefault(guess, {})[metric] = value
    return found


def _scores_of(config: dict[str, Any], bundle: Bundle) -> np.ndarray:
    """Of the test links, popularity of the target and of each candidate, pair by pair."""
    loaded = load_config(config)
    task = LinkPrediction(**config["task"]["args"])
    task.setup(TaskEnvironment(loaded, bundle, 0, 1, torch.device("cpu")))
    loader = task.loader("test")
    popularity: dict[tuple[int, int], int] = {}
    for split in ("train", "val"):  # a transductive test knows both
        edges = task.target.splits[split]
        for row, (first, last) in enumerate(zip(edges.indptr, edges.indptr[1:], strict=False)):
            relation = 0 if edges.relations is None else int(edges.relations[row])
            for item in edges.targets[first:last].tolist():
                popularity[relation, item] = popularity.get((relation, item), 0) + 1
    rows = []
    for batch in loader.iterate(0):
        links = batch.links
        relation = torch.zeros_like(links.position) if links.relation is None else links.relation
        drawn = links.random.id[links.candidate].tolist()
        ends = zip(relation.tolist(), links.id[1].tolist(), drawn, strict=True)
        for r, target, others in ends:
            rows.append([popularity.get((r, item), 0) for item in (target, *others)])
    task.close()
    return np.array(rows)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("temporal", [False, True])
def test_popularity_is_that_of_brute_force(tmp_path, several, temporal):
    bundle = _bundle(tmp_path, popular=True, several=several)
    config = _config(tmp_path)
    if temporal:
        config["sampling"]["temporal"] = {}
        config["data"]["splits"] = {"type": "temporal", "quantiles": [0.6, 0.8]}
    metrics = run_rank(config, str(bundle.path))
    found, scores = _baselines(metrics), _scores_of(config, bundle)
    positive, others = scores[:, :1], scores[:, 1:]
    rank = 1 + (others > positive).sum(1) + 0.5 * (others == positive).sum(1)
    of_guess = found["popularity"]
    assert of_guess["mrr"] == pytest.approx((1 / rank).mean(), abs=1e-12)
    for k in KS:
        assert of_guess[f"hits@{k}"] == pytest.approx((rank <= k).mean(), abs=1e-12)
    labels = np.concatenate([np.ones(len(scores)), np.zeros(others.size)])
    flat = np.concatenate([positive.ravel(), others.ravel()])
    assert of_guess["auc"] == pytest.approx(reference.roc_auc_score(labels, flat), abs=1e-9)
    assert of_guess["ap"] == pytest.approx(
        reference.average_precision_score(labels, flat), abs=1e-9
    )
    every = 1 + np.arange(K + 1)
    assert found["chance"] == {
        "mrr": pytest.approx((1 / every).mean(), abs=1e-12),
        **{f"hits@{k}": pytest.approx(k / (K + 1), abs=1e-12) for k in KS},
        "auc": 0.5,
        "ap": 1 / (K + 1),
    }
    assert of_guess["auc"] > 0.6
    # A model of one step is worse than popularity by all of them.
    assert metrics["no_better_than_baseline"].count("(") >= 4


def _run(config: dict[str, Any], path: str) -> dict[str, float]:
    metrics = run_rank(config, path)
    return {k: v for k, v in metrics.items() if k.startswith("baseline/")}


def test_popularity_does_not_depend_on_the_number_of_ranks(ranks, tmp_path):
    bundle = _bundle(tmp_path, popular=True)
    found = []
    for size in (1, 2, 3):
        config = _config(tmp_path / str(size))
        config["task"]["args"]["full_ranking"] = True
        results = ranks.run(_run, size, config, str(bundle.path))
        assert all(result == results[0] for result in results)
        found.append(results[0])
    assert found[0] == found[1] == found[2]
    assert found[0]["baseline/popularity/test/full_mrr"] > 0
    assert "baseline/chance/test/full_mrr" not in found[0]


def test_noise_is_no_better_than_chance(tmp_path):
    """A trained model of links that are drawn at random."""
    bundle = _bundle(tmp_path, popular=False)
    config = _config(tmp_path, training={"max_epochs": 3}, early_stopping={"patience": 3})
    metrics = run_rank(config, str(bundle.path))
    told = metrics["no_better_than_baseline"]
    for name in ("full_mrr", "full_ndcg@20"):
        assert f"test/{name} " in told


def test_of_some_batches_only(tmp_path):
    bundle = _bundle(tmp_path, popular=True)
    config = _config(tmp_path, training={"max_steps": 1, "num_test_batches": 2})
    metrics = run_rank(config, str(bundle.path))
    scores = _scores_of(config, bundle)[:32]
    rank = (
        1 + (scores[:, 1:] > scores[:, :1]).sum(1) + 0.5 * (scores[:, 1:] == scores[:, :1]).sum(1)
    )
    assert _baselines(metrics)["popularity"]["mrr"] == pytest.approx((1 / rank).mean(), abs=1e-12)


@pytest.mark.slow
def test_item_regression_beats_factors_and_these_popularity_on_generated_likes(tmp_path):
    """As on MovieLens-100k; and the model of a few steps is compared with all of them."""
    uri = write_tables(synthetic_tables("likes"), str(tmp_path / "tables"))
    bundle = ingest(uri, IngestOptions(reverse_edges=True), str(tmp_path / "cache"))
    config = _config(tmp_path, loader={"batch_size": 512, "eval_batch_size": 4096})
    config["task"]["args"]["edge_type"] = "user__likes__film"
    config["model"]["args"]["node_embeddings"] = False
    metrics = run_rank(config, str(bundle.path))
    baselines = _baselines(metrics)
    ndcg = {name: baselines[name]["full_ndcg@20"] for name in ("ease", "ials", "popularity")}
    assert ndcg["ease"] > 1.02 * ndcg["ials"], ndcg
    assert ndcg["ials"] > 1.1 * ndcg["popularity"], ndcg
    assert "ease" in metrics["no_better_than_baseline"]


def test_the_order_of_links_counts_where_the_next_ones_follow_the_last(tmp_path):
    """A user reads five items of a topic, then five of another; EASE recommends from all topics."""
    rng = np.random.default_rng(0)
    num_users, num_topics, num_each = 300, 20, 10
    topics = np.argsort(rng.random((num_users, num_topics)), axis=1)[:, :6]
    chosen = np.argsort(rng.random((num_users, 6, num_each)), axis=2)[:, :, :5]
    item = (num_each * topics[:, :, None] + chosen).reshape(-1)
    user = np.repeat(np.arange(num_users), 30)
    order = rng.permutation(len(item))
    reads = edge_rows(user[order], item[order], time=np.tile(np.arange(30), num_users)[order])
    nodes = {
        "user": node_rows(np.arange(num_users)),
        "item": node_rows(np.arange(num_topics * num_each)),
    }
    uri = write_tables(
        GraphTables(nodes, {("user", "reads", "item"): reads}), str(tmp_path / "tables")
    )
    bundle = ingest(uri, IngestOptions(reverse_edges=True), str(tmp_path / "cache"))
    config = _config(tmp_path)
    config["data"]["splits"] = {"type": "temporal", "quantiles": [0.8, 0.9], "per": "anchor"}
    metrics = run_rank(config, str(bundle.path))
    assert metrics["test/full_ndcg@20"] > 5 * _baselines(metrics)["ease"]["full_ndcg@20"]
