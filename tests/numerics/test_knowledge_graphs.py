"""Embeddings of knowledge graphs: rows without messages, links among all nodes (1-vs-all)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.runtime.data_source import open_bundle
from tests.errors import raises
from tests.small_runs import change, check_workers_agree, evaluated_link_task, small_config
from tests.tiers import slow

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

NUM_NODES, NUM_RELATIONS, NUM_EDGES = 40, 3, 160


def write_graph(folder: Path) -> str:
    """Relation r leads from node i to nodes near i + 10 r."""
    rng = np.random.default_rng(0)
    edges = {}
    for relation in range(NUM_RELATIONS):
        source = rng.integers(0, NUM_NODES, NUM_EDGES)
        target = (source + 10 * relation + rng.integers(1, 4, NUM_EDGES)) % NUM_NODES
        edges["e", f"r{relation}", "e"] = edge_rows(source, target)
    tables = GraphTables({"e": node_rows(np.arange(NUM_NODES))}, edges)
    return write_tables(tables, str(folder / "tables"))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_graph(tmp_path_factory.mktemp("graph"))


def _config(folder: Path, uri: str, world_size: int = 0, task=None, **changes) -> dict:
    config = small_config(
        folder,
        scaling__num_workers=world_size,
        metrics=[{"type": "mrr"}],
        losses=[{"type": "softmax"}, {"type": "n3", "weight": 0.01}],
        training__global_batch_size=96,
        optimizer={"type": "Adagrad", "args": {"lr": 0.1}},
    )
    config["data"] = {
        "uri": uri,
        "reverse_edges": True,
        "splits": {"type": "hash", "fractions": [0.8, 0.1, 0.1]},
    }
    config["model"] = {"type": "Embedding", "args": {"out_channels": 16, "dropout": 0.1}}
    settings = {
        "edge_type": "e__*__e",
        "decoder": {"type": "complex"},
        "num_random_negatives": "all",
        "num_random_negatives_eval": 20,
        "seeds": "anchors",
        "full_ranking": [1, 10],
    }
    config["task"] = {"type": "link_prediction", "args": {**settings, **(task or {})}}
    del config["sampling"]  # what fanouts say is not read
    change(config, **changes)
    return config


@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("seeds", ["anchors", "links"])
def test_links_compete_with_all_nodes(tmp_path, graph, masks, seeds):
    args = {"remove_accidental_hits": masks, "seeds": seeds}
    config = _config(tmp_path, graph, task=args)
    del config["losses"]
    task = evaluated_link_task(config)
    decoder, table = task.model.decoder, task.model.encoder.module.inputs.tables["e"]
    supervision, total, num_links = task.target.splits["train"], 0.0, 0
    for batch in task.loader("train").iterate(0):
        assert not batch.edges
        step, links = task.training_step(batch), batch.links
        expected = []
        for (anchor, target), relation in zip(
            links.id.T.tolist(), links.relation.tolist(), strict=True
        ):
            row = table.rows.weight[anchor].expand(NUM_NODES, -1)
            scores = decoder.score_pairs(row, table.rows.weight, relation)
            (place,) = np.flatnonzero(
                (supervision.anchors == anchor) & (supervision.relations == relation)
            )
            known = supervision.targets[supervision.indptr[place] : supervision.indptr[place + 1]]
            out = {*known.tolist()} - {target} if masks else set()
            taking = [node for node in range(NUM_NODES) if node not in out]
            expected.append(scores[taking].logsumexp(0) - scores[target])
        torch.testing.assert_close(step.loss_sum, torch.stack(expected).sum())
        assert step.weight == len(expected)
        total, num_links = total + float(step.loss_sum.detach()), num_links + len(expected)
    assert num_links == supervision.num_links
    assert total > 0
    task.close()


@pytest.mark.parametrize("decoder", ["complex", *slow("distmult")])
def test_learnable_links_are_learnt(tmp_path, decoder):
    # Each relation leads from a node to one of 5 of its own, by the node's class: who knows the
    # node's other links knows the class.
    source = np.arange(100)
    edges = {("e", f"r{r}", "e"): edge_rows(source, 100 + 5 * r + source % 5) for r in range(6)}
    tables = GraphTables({"e": node_rows(np.arange(130))}, edges)
    uri = write_tables(tables, str(tmp_path / "tables"))
    config = _config(tmp_path, uri, task={"decoder": {"type": decoder}}, training__max_epochs=30)
    found = raygnn.train.fit(config).metrics
    # By popularity the target is one of 5, and the source one of 100: 0.46 and 0.05.
    assert found["test/full_mrr"] > 0.5


def test_workers_agree(ranks, graph, tmp_path):
    config = partial(_resumable, uri=graph, model__args__dropout=0.0)
    bundle = open_bundle(load_config(config(tmp_path)), None)
    check_workers_agree(ranks, config, tmp_path, str(bundle.path), "test/full_mrr", rtol=1e-3)


def _resumable(folder: Path, world_size: int = 2, uri: str = "", **changes) -> dict:
    return _config(folder, uri, world_size, **changes)


def test_rgcn_encodes_all_nodes_in_each_batch(tmp_path, graph, capsys):
    config = _config(tmp_path, graph)
    config["model"] = {"type": "RGCN", "args": {"hidden_channels": 16, "num_bases": 2}}
    config["sampling"] = {"fanouts": [2]}
    config["task"]["args"]["seeds"] = "links"
    task = evaluated_link_task(config)
    batch = task.loader("train").build(0, 0)
    assert sorted(batch.nodes["e"].n_id.tolist()) == list(range(NUM_NODES))
    assert batch.edges
    assert task.training_step(batch).loss_sum.isfinite()
    said = " ".join(task.target.summary(task.env.bundle))
    assert "each batch encodes and scores all 40 nodes of type e" in said
    task.close()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"losses": [{"type": "retrieval"}]}, ("task-all-negatives", "retrieval")),
        ({"sampling": {"temporal": {"column": "time"}}}, ("task-all-temporal",)),
    ],
)
def test_what_does_not_go_with_all_nodes(tmp_path, graph, changes, expected):
    with raises(*expected):
        raygnn.train.fit(_config(tmp_path, graph, **changes))
