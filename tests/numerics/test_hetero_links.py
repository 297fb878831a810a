"""Links between two node types: ranks whose batches lack types, exact evaluation, wrong input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import raygnn.train
from raygnn.config import load_config
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.tasks.link_prediction.target import LinkTarget, LinkTargetArguments
from raygnn.runtime.data_source import open_bundle
from tests.small_runs import (
    check_workers_agree,
    link_task,
    small_config,
    trained_weights,
)
from tests.tiers import slow

LIKES = ("user", "likes", "item")


def _tables() -> GraphTables:
    """One user has tags, and they alone have no features."""
    rng, num_users, num_items = np.random.default_rng(0), 80, 40
    group = rng.integers(0, 4, num_users)
    source = rng.integers(0, num_users, 600)
    target = (group[source] + 4 * rng.integers(0, 10, 600)) % num_items
    tagged = rng.integers(0, 5, 6)
    # Of users 70 to 79 nothing is known but what they dislike.
    keep = source[:300] < 70
    labels = {
        (LIKES, "positive"): edge_rows(source[:300][keep], target[:300][keep]),
        (LIKES, "negative"): edge_rows(np.arange(60, num_users), np.arange(20) % num_items),
    }
    return GraphTables(
        {
            "user": node_rows(np.arange(num_users), {"x": rng.random((num_users, 3))}),
            "item": node_rows(np.arange(num_items), {"x": rng.random((num_items, 5))}),
            "tag": node_rows(np.arange(5)),
        },
        {
            ("user", "sees", "item"): edge_rows(source[300:], target[300:]),
            ("tag", "of", "user"): edge_rows(tagged, np.full(6, 3)),
        },
        label_edges=labels,
    )


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tables(_tables(), str(tmp_path_factory.mktemp("graph") / "tables"))


def _config(folder: Path, uri: str, world_size: int = 0, **changes) -> dict:
    settings = {
        "task": {
            "type": "link_prediction",
            "args": {
                "edge_type": "user__likes__item",
                "labels": True,
                "num_random_negatives": 10,
                "num_random_negatives_eval": 10,
                "full_ranking": True,
            },
        },
        "data": {
            "uri": uri,
            "reverse_edges": True,
            "splits": {"type": "hash", "fractions": [0.7, 0.15, 0.15]},
        },
        "metrics": [{"type": "mrr"}],
        "loader__batch_size": 5,
        "training__global_batch_size": 15,
        "scaling__num_workers": world_size,
        "model": {"type": "HGT", "args": {"hidden_channels": 8, "num_heads": 2}},
    }
    return small_config(folder, **{**settings, **changes})


MODELS = {
    "hgt": {"type": "HGT", "args": {"hidden_channels": 8, "num_heads": 2}},
    "sparse rows": {"type": "LightGCN", "args": {"out_channels": 8, "sparse_embeddings": True}},
    "sparse rows beside features": {
        "type": "Hetero",
        "args": {"hidden_channels": 8, "sparse_embeddings": True},
    },
}


@pytest.mark.parametrize("name", ["hgt", *slow(*(name for name in MODELS if name != "hgt"))])
def test_ranks_whose_batches_lack_types_agree_with_one(ranks, graph, tmp_path, name):
    def config(folder: Path, size: int) -> dict:
        # Not one that divides by the gradient: of parameters that do not matter it is noise.
        optimizer = {"type": "SGD", "args": {"lr": 0.05}}
        return _config(folder, graph, size, model=MODELS[name], optimizer=optimizer)

    bundle = str(open_bundle(load_config(config(tmp_path, 0)), None).path)
    how = {"sizes": (1, 3), "rtol": 1e-3, "atol": 1e-4}
    check_workers_agree(ranks, config, tmp_path, bundle, "val/loss", **how)


def test_batches_do_lack_types(graph, tmp_path):
    """What the test above is about: of three ranks of a step, not all have tags, or a batch."""
    task = link_task(_config(tmp_path, graph))
    batches = list(task.loader("train").iterate(0))
    task.close()
    tags = [len(batch.nodes["tag"].n_id) for batch in batches]
    edges = [batch.edges["tag", "of", "user"].edge_index.shape[1] for batch in batches]
    steps = [range(i, min(i + 3, len(batches))) for i in range(0, len(batches), 3)]
    assert any({tags[i] > 0 for i in step} == {True, False} for step in steps)
    assert any({edges[i] > 0 for i in step} == {True, False} for step in steps)
    assert len(steps[-1]) < 3


def test_exact_evaluation_is_sampling_of_all_neighbors(graph, tmp_path):
    losses = {}
    for evaluation in ("exact", "sampled"):
        config = _config(tmp_path / evaluation, graph)
        config["sampling"]["fanouts"] = [-1, -1]
        config["training"].update(eval=evaluation, max_epochs=1)
        losses[evaluation] = raygnn.train.fit(config).metrics
    for key in ("val/loss", "test/loss", "test/mrr"):
        assert losses["exact"][key] == pytest.approx(losses["sampled"][key], rel=1e-4)


def _train(capfd, config: dict, folder: Path) -> tuple[int, str, str]:
    """What the command line gives: its status, what it said, and what went wrong."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    status = raygnn.train.main([str(folder / "config.yaml")])
    output = capfd.readouterr()
    assert "Traceback" not in output.err
    return status, output.out, output.err


def test_rows_of_featureless_types_and_anchors_that_are_left_out_are_named(graph, tmp_path, capfd):
    config = _config(tmp_path, graph)
    loaded = load_config(config)
    arguments = LinkTargetArguments.of(loaded.config.task.args)
    splits = LinkTarget.find(open_bundle(loaded, None), loaded.config, arguments).splits
    anchors = np.unique(np.concatenate([edges.anchors for edges in splits.values()]))
    assert anchors.max() < 70
    for edges in splits.values():
        assert edges.num_links
        assert np.diff(edges.indptr).min() > 0
    assert splits["train"].hard_negatives.num_links > 0
    status, said, _ = _train(capfd, config, tmp_path)
    assert status == 0
    assert f"{80 - len(anchors)} nodes of type user have no such links and are no anchors" in said
    assert "without feature 'x': tag; the model learns" in said
    assert [5, 8] in [list(tensor.shape) for tensor in trained_weights(config).values()]


def test_more_negatives_than_nodes_and_it_says_so(graph, tmp_path, capfd):
    config = _config(tmp_path, graph)
    config["task"]["args"].update(num_random_negatives=500, num_random_negatives_eval=500)
    status, said, _ = _train(capfd, config, tmp_path)
    assert status == 0
    assert "task.args.num_random_negatives: there are 40 nodes of type item, so some repeat" in said
    assert (
        "num_random_negatives_eval: each link competes with at most 39, the other nodes of type"
        in said
    )
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert 0 < metrics["test/mrr"] <= 1
