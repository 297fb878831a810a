"""LightGCN through the engine: the paper's propagation, whole or sampled, on 1 and 2 ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from raygnn.config import load_config
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.tasks.link_prediction.task import LinkPrediction
from raygnn.models import LightGCN
from raygnn.runtime.data_source import open_bundle
from tests.small_runs import check_workers_agree, evaluated_link_task, small_config
from tests.tiers import slow

NUM_USERS, NUM_ITEMS, CHANNELS = 70, 40, 8
BUYS, BOUGHT_BY = ("user", "buys", "item"), ("item", "rev_buys", "user")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Users buy ten items each, most of their own community."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(NUM_USERS), 10)
    near = 4 * rng.integers(0, NUM_ITEMS // 4, len(user)) + user % 4
    item = np.where(rng.random(len(user)) < 0.95, near, rng.integers(0, NUM_ITEMS, len(user)))
    nodes = {"user": node_rows(np.arange(NUM_USERS)), "item": node_rows(np.arange(NUM_ITEMS))}
    pairs = np.unique(np.stack([user, item]), axis=1)
    tables = GraphTables(nodes, {BUYS: edge_rows(*pairs)})
    return write_tables(tables, str(tmp_path_factory.mktemp("graph") / "tables"))


def _config(folder: Path, uri: str, fanouts: list[int], world_size: int = 0) -> dict:
    args = {"num_random_negatives": 30, "num_random_negatives_eval": 20, "full_ranking": [5]}
    args |= {"edge_type": "user__buys__item", "max_labels_per_anchor": 2, "feature": "none"}
    return small_config(
        folder,
        data={"uri": uri, "reverse_edges": True, "splits": {"type": "hash"}},
        task={"type": "link_prediction", "args": args},
        metrics=[{"type": "auc"}],
        sampling={"fanouts": fanouts},
        model={"type": "LightGCN", "args": {"out_channels": CHANNELS}},
        losses=[{"type": "bpr"}],
        optimizer={"type": "Adam", "args": {"lr": 0.05}},
        loader={"batch_size": 10, "eval_batch_size": 32},
        training__global_batch_size=60,
        training__max_epochs=8,
        scaling__num_workers=world_size,
    )


@pytest.fixture
def task(graph: str, tmp_path: Path):
    task = evaluated_link_task(_config(tmp_path, graph, [-1, -1, -1]))
    yield task
    task.close()


def _dense(task: LinkPrediction, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Messages of a split as a matrix [items + users, items + users], and the learned rows."""
    size = NUM_USERS + NUM_ITEMS
    matrix = np.zeros((size, size))
    graph = task.message_store(split)
    for edge_type, target, source in ((BUYS, NUM_USERS, 0), (BOUGHT_BY, 0, NUM_USERS)):
        indptr, indices, *_ = graph.adjacency(edge_type)
        takers = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        np.add.at(matrix, (takers + target, indices + source), 1)
    tables = task.model.encoder.module.inputs.tables
    rows = [tables[name].rows.weight.detach().double().numpy() for name in ("user", "item")]
    return matrix, np.concatenate(rows)


@pytest.mark.parametrize("keeps_links", [True, False])
def test_a_training_step_propagates_over_all_training_links(
    task: LinkPrediction, monkeypatch: pytest.MonkeyPatch, keeps_links: bool
) -> None:
    """Where its own are left out, the sum over a node's other edges is scaled to all of them."""
    assert LightGCN.keeps_links
    monkeypatch.setattr(LightGCN, "keeps_links", keeps_links)
    matrix, rows = _dense(task, "train")
    scale = 1 / np.sqrt(np.maximum(matrix.sum(1), 1))
    for batch in task.loader("train").iterate(0):
        users, items = batch.links.id.numpy()
        kept = matrix.copy()
        if not keeps_links:
            kept[users, items + NUM_USERS] = kept[items + NUM_USERS, users] = 0
            assert matrix.sum() - kept.sum() == 2 * len(users)
        factor = matrix.sum(1) / np.maximum(kept.sum(1), 1)
        layers = [rows]
        for _ in range(3):
            summed = kept @ (scale[:, None] * layers[-1])
            layers.append((factor * scale)[:, None] * summed)
        expected = np.mean(layers, axis=0)
        with torch.no_grad():
            found = task.encode(batch)
        for name, offset in (("user", 0), ("item", NUM_USERS)):
            nodes = batch.nodes[name]
            seeds = nodes.n_id[: nodes.num_seeds].numpy()
            np.testing.assert_allclose(found[name].numpy(), expected[seeds + offset], atol=1e-5)


@pytest.mark.parametrize("fanouts", [[4, 3, 2], *slow([-1, -1, -1])])
def test_it_learns_and_any_number_of_ranks_gives_the_same(ranks, graph, tmp_path, fanouts):
    def config(folder: Path, size: int) -> dict:
        return _config(folder, graph, fanouts, size)

    bundle = str(open_bundle(load_config(config(tmp_path, 0)), None).path)
    names = ("val/loss", "test/auc", "test/full_recall@5", "test/full_ndcg@5")
    close = {"rtol": 1e-3, "atol": 1e-4}
    metrics, _ = check_workers_agree(ranks, config, tmp_path, bundle, *names, **close)
    assert metrics["test/full_recall@5"] > 0.25  # at random 5 of 40
