"""Node classes from the labels around a node, in whole runs on graphs without features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raygnn
import raygnn.train
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from tests.small_runs import small_config

NUM_NODES, NUM_CLASSES = 600, 3


def _write(folder: Path, alike: float) -> str:
    """Each node has an edge to a random one, with a probability of its own class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(NUM_CLASSES, size=NUM_NODES)
    source = np.arange(NUM_NODES)
    target = rng.integers(NUM_NODES, size=NUM_NODES)
    for i in np.flatnonzero(rng.random(NUM_NODES) < alike):
        target[i] = rng.choice(np.flatnonzero(labels == labels[i]))
    edges = edge_rows(np.concatenate([source, target]), np.concatenate([target, source]))
    nodes = {"node": node_rows(np.arange(NUM_NODES), labels={"y": labels})}
    return write_tables(GraphTables(nodes, {("node", "to", "node"): edges}), str(folder / "graph"))


def _trained(folder: Path, uri: str, **changes: Any) -> dict[str, float]:
    changes = {"metrics": [{"type": "accuracy"}], "training__max_epochs": 4, **changes}
    split = {"type": "hash", "fractions": [0.5, 0.25, 0.25]}
    config = small_config(folder, data={"uri": uri, "splits": split}, model="Hetero", **changes)
    return raygnn.train.fit({**config, "scaling": {"num_workers": 0}}).metrics


@pytest.mark.parametrize("how", ["sampled", "exact"])
def test_labels_around_a_node_are_read_in_training_and_in_use(tmp_path: Path, how: str) -> None:
    uri = _write(tmp_path, alike=0.85)
    metrics = _trained(tmp_path, uri, training__eval=how)
    off = {"type": "node_classification", "args": {"propagate_labels": False}}
    alone = _trained(tmp_path / "off", uri, training__eval=how, task=off)
    assert metrics["test/loss"] < 0.8 * alone["test/loss"]
    model = raygnn.load(str(tmp_path / "run"), ["--data.uri", uri])
    judged = model.evaluate(split="test", exact=how == "exact")
    assert judged["accuracy"] == metrics["test/accuracy"]
    every = model.predict(exact=True).to_pandas()
    asked = model.predict(nodes=[7, 3], exact=True).to_pandas()
    assert asked["prediction"].tolist() == every["prediction"][[7, 3]].tolist()
    saved = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert saved["baseline/label_propagation/test/accuracy"] > 0.8


def test_random_labels_are_at_chance(tmp_path: Path) -> None:
    accuracy = _trained(tmp_path, _write(tmp_path, alike=0.0))["test/accuracy"]
    assert abs(accuracy - 1 / NUM_CLASSES) < 4 * (2 / 9 / (NUM_NODES / 4)) ** 0.5
