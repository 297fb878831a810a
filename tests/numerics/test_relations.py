"""Links of several relations: each with its own decoder weights, known links and exclusions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.runtime.data_source import open_bundle
from tests.errors import raises
from tests.small_runs import check_workers_agree, evaluated_link_task, small_config
from tests.tiers import slow

NUM_NODES, NUM_RELATIONS = 60, 3


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Relation r leads from node i to nodes near i + 20 r."""
    rng = np.random.default_rng(0)
    edges = {}
    for relation in range(NUM_RELATIONS):
        source = rng.integers(0, NUM_NODES, 150)
        target = (source + 20 * relation + rng.integers(1, 4, 150)) % NUM_NODES
        edges["e", f"r{relation}", "e"] = edge_rows(source, target)
    tables = GraphTables({"e": node_rows(np.arange(NUM_NODES))}, edges)
    return write_tables(tables, str(tmp_path_factory.mktemp("graph") / "tables"))


def _config(folder: Path, uri: str, world_size: int = 0, **args) -> dict:
    config = small_config(
        folder,
        scaling__num_workers=world_size,
        metrics=[{"type": "mrr"}],
        training__global_batch_size=96,
        losses=[{"type": "softmax", "args": {"temperature": 1.0}}],
        optimizer={"type": "Adam", "args": {"lr": 0.03}},
    )
    config["data"] = {
        "uri": uri,
        "reverse_edges": True,
        "splits": {"type": "hash", "fractions": [0.7, 0.15, 0.15]},
    }
    config["model"] = {"type": "RGCN", "args": {"hidden_channels": 16}}
    settings = {
        "edge_type": "e__r*__e",
        "decoder": {"type": "distmult"},
        "num_random_negatives": 30,
        "num_random_negatives_eval": 30,
        "full_ranking": True,
    }
    config["task"] = {"type": "link_prediction", "args": {**settings, **args}}
    return config


@pytest.mark.parametrize("pattern", ["e__r*__e", *slow("e__r[0-9]__e")])
def test_full_ranking_is_that_of_brute_force_by_relation(tmp_path, graph, pattern):
    task = evaluated_link_task(_config(tmp_path, graph, edge_type=pattern))
    decoder, bundle = task.model.decoder, task.env.bundle
    num_relations = len(task.target.edge_types)
    assert num_relations == decoder.num_relations == (3 if "[" in pattern else 6)
    torch.nn.init.normal_(decoder.relation)
    with torch.no_grad():
        rows = task._encode_graph("val")["e"]
    task._ranking.prepare(task.target, decoder, "val", {"e": rows})
    links, ranks = task.target.splits["val"], []
    tested = task.target.splits["test"]  # compete in validation, as unknown links do
    held_out = {
        (int(anchor), int(tested.relations[i]), int(target))
        for i, anchor in enumerate(tested.anchors)
        for target in tested.targets[tested.indptr[i] : tested.indptr[i + 1]]
    }
    for place, anchor in enumerate(links.anchors):
        relation = int(links.relations[place])
        csr = bundle.csr(task.target.edge_types[relation])
        known = set(csr.indices[csr.indptr[anchor] : csr.indptr[anchor + 1]].tolist())
        known -= {node for node in known if (int(anchor), relation, node) in held_out}
        for target in links.targets[links.indptr[place] : links.indptr[place + 1]]:
            assert int(target) in known
            others = [node for node in range(NUM_NODES) if node not in known]
            scores = (rows[anchor] * decoder.relation[relation] * rows).sum(1)
            ranks.append(1 + int((scores[others] > scores[target]).sum()))
    with torch.no_grad():
        of_batches = [
            task._ranking.update(torch.empty(0), batch)
            for batch in torch.arange(links.num_links).split(7)
        ]
    found = task._ranking.compute(torch.stack(of_batches).sum(0))
    assert found["full_mrr"] == pytest.approx(np.mean(1 / np.array(ranks)), rel=1e-5)
    task.close()


def test_no_batch_passes_messages_along_its_own_links(tmp_path, graph):
    config = _config(tmp_path, graph)
    config["sampling"]["fanouts"] = [-1, -1]
    task = evaluated_link_task(config)
    types = task.target.edge_types
    for batch in task.loader("train").iterate(0):
        relation = batch.links.relation
        for name in batch.edges:
            row, col = batch.nodes["e"].n_id[batch.edges[name].edge_index]
            edges = set(zip(row.tolist(), col.tolist(), strict=True))
            reverse = task.target.reverse_types[name]
            for wanted in (name, reverse):
                if wanted in types:
                    pairs = batch.links.id[:, relation == types.index(wanted)]
                    ways = [pairs, pairs.flip(0)]
                    for way in ways:
                        assert not edges & set(zip(*way.tolist(), strict=True))
    task.close()


def test_each_relation_is_learnt_and_workers_agree(ranks, graph, tmp_path):
    def config(folder: Path, size: int) -> dict:
        config = _config(folder, graph, size)
        config["training"]["max_epochs"] = 6
        return config

    bundle = str(open_bundle(load_config(config(tmp_path, 0)), None).path)
    close = {"rtol": 1e-3, "atol": 1e-4}
    metrics, weights = check_workers_agree(ranks, config, tmp_path, bundle, sizes=(1, 3), **close)
    assert metrics["test/full_mrr"] > 0.1  # at random 0.08
    relations = weights["decoder.relation"]
    assert relations.shape[0] == 2 * NUM_RELATIONS
    assert not torch.allclose(relations[0], relations[2])


def test_types_that_do_not_go_together(tmp_path):
    rng = np.random.default_rng(0)
    tables = GraphTables(
        {"a": node_rows(np.arange(9)), "b": node_rows(np.arange(9))},
        {
            ("a", "r", "b"): edge_rows(*rng.integers(0, 9, (2, 40))),
            ("b", "s", "b"): edge_rows(*rng.integers(0, 9, (2, 40))),
        },
    )
    uri = write_tables(tables, str(tmp_path / "tables"))
    for edge_type, expected in {
        "*": ("task-edge-types-differ", "a__r__b, b__s__b"),
        "a__x*": ("task-edge-type-unknown", "edge_type='a__x*'"),
    }.items():
        with raises(*expected):
            raygnn.train.fit(_config(tmp_path, uri, edge_type=edge_type))
