"""Runs whose neighbors are drawn by weight or in time."""

from __future__ import annotations

import numpy as np
import pytest

import raygnn.train
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from tests.small_runs import small_config


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The label of a node is its neighbors', but along edges of weight 0 and later ones."""
    rng = np.random.default_rng(0)
    label, born = rng.integers(0, 3, 240), rng.integers(0, 50, 240)
    source, target = rng.integers(0, 240, (2, 9000))
    is_true = label[source] == label[target]
    later = born[source] > born[target]
    weight = is_true.astype(np.float32)
    time = np.where(is_true & ~later, born[target], born[target] + 1)
    features = {"x": np.eye(3, dtype=np.float32)[label], "noise": rng.random((240, 3))}
    nodes = node_rows(np.arange(240), features, {"y": label}, time=born)
    edges = edge_rows(source, target, weight=weight, time=time)
    tables = GraphTables({"node": nodes}, {("node", "to", "node"): edges})
    return write_tables(tables, str(tmp_path_factory.mktemp("graph") / "tables"))


def _config(folder, graph, **changes):
    settings = {
        "scaling__num_workers": 0,
        "training__max_epochs": 6,
        "optimizer": {"type": "Adam", "args": {"lr": 0.05}},
        "metrics": [{"type": "accuracy"}],
        **changes,
    }
    config = small_config(folder, **settings)
    config["data"] = {"uri": graph, "splits": {"type": "hash", "fractions": [0.5, 0.2, 0.3]}}
    # no more than what the neighbors say
    config["model"] = {"type": "tests.user_code.NeighborsOnly"}
    return config


@pytest.mark.parametrize(
    "sampling",
    [
        {"weight": "weight"},
        {"temporal": {}},
        {"temporal": {"strategy": "last"}},
        {"weight": "weight", "temporal": {"column": "time"}},
    ],
)
def test_only_the_right_neighbors_are_seen(tmp_path, graph, sampling):
    config = _config(tmp_path, graph)
    config["sampling"] = {"fanouts": [4], **sampling}
    metrics = raygnn.train.fit(config, allow_modules=["tests"]).metrics
    assert metrics["test/accuracy"] > 0.8


def test_without_them_all_neighbors_are_seen(tmp_path, graph):
    config = _config(tmp_path, graph)
    config["sampling"] = {"fanouts": [4]}
    metrics = raygnn.train.fit(config, allow_modules=["tests"]).metrics
    assert metrics["test/accuracy"] < 0.7


def test_exact_evaluation_takes_all_neighbors_up_to_the_time_of_the_seed(tmp_path, graph):
    settings = {"optimizer": {"type": "Adam", "args": {"lr": 0.0}}, "training__max_epochs": 1}
    losses = []
    for fanout, how in ((2, "exact"), (-1, "sampled"), (2, "sampled")):
        config = _config(tmp_path / f"{fanout}-{how}", graph, **settings, training__eval=how)
        config["sampling"] = {"fanouts": [fanout], "temporal": {}}
        config["task"] = {
            "type": "node_classification",
            "args": {"blend": False, "feature": "noise"},
        }
        losses.append(raygnn.train.fit(config, allow_modules=["tests"]).metrics["val/loss"])
    assert losses[0] == losses[1] != losses[2]
