"""Node classes from the labels around a node, in whole runs on graphs without features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.data.splits import hash_split
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.trained_model import TrainedModel
from tests.small_runs import small_config

NUM_NODES, NUM_CLASSES = 600, 3


def _graph() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each node has an edge to a random one, with a probability of 0.85 of its own class.

    Returns:
        Classes of the nodes, and ends of the edges.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(NUM_CLASSES, size=NUM_NODES)
    source = np.arange(NUM_NODES)
    target = rng.integers(NUM_NODES, size=NUM_NODES)
    for i in np.flatnonzero(rng.random(NUM_NODES) < 0.85):
        target[i] = rng.choice(np.flatnonzero(labels == labels[i]))
    return labels, np.concatenate([source, target]), np.concatenate([target, source])


def _tables(
    folder: Path, labels: np.ndarray | None, source: np.ndarray, target: np.ndarray, num: int
) -> str:
    given = None if labels is None else {"y": labels[:num]}
    nodes = {"node": node_rows(np.arange(num), {"x": np.ones((num, 1), np.float32)}, labels=given)}
    is_there = (source < num) & (target < num)
    edges = {("node", "to", "node"): edge_rows(source[is_there], target[is_there])}
    write_tables(GraphTables(nodes, edges), str(folder))
    return str(folder)


def _write(folder: Path) -> str:
    labels, source, target = _graph()
    edges = edge_rows(source, target)
    nodes = {"node": node_rows(np.arange(NUM_NODES), labels={"y": labels})}
    return write_tables(GraphTables(nodes, {("node", "to", "node"): edges}), str(folder / "graph"))


def _trained(folder: Path, uri: str, **changes: Any) -> dict[str, float]:
    changes = {"metrics": [{"type": "accuracy"}], "training__max_epochs": 4, **changes}
    split = {"type": "hash", "fractions": [0.5, 0.25, 0.25]}
    config = small_config(folder, data={"uri": uri, "splits": split}, model="Hetero", **changes)
    return raygnn.train.fit({**config, "scaling": {"num_workers": 0}}).metrics


@pytest.mark.parametrize("how", ["sampled", "exact"])
def test_labels_around_a_node_are_read_in_training_and_in_use(tmp_path: Path, how: str) -> None:
    uri = _write(tmp_path)
    metrics = _trained(tmp_path, uri, training__eval=how)
    off = {"type": "node_classification", "args": {"blend": False, "propagate_labels": False}}
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


NUM_OLD = 560


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedModel, Path]:
    """A model of the first nodes, whose features say nothing."""
    folder = tmp_path_factory.mktemp("labels-around")
    uri = _tables(folder / "old", *_graph(), NUM_OLD)
    split = {"type": "hash", "fractions": [0.5, 0.25, 0.25]}
    config = small_config(
        folder,
        data={"uri": uri, "splits": split, "cache_dir": str(folder / "cache")},
        metrics=[{"type": "accuracy"}],
        scaling__num_workers=0,
    )
    metrics = raygnn.train.fit(config).metrics
    model = raygnn.load(str(folder / "run"))
    assert model.evaluate(uri, split="test")["accuracy"] == metrics["test/accuracy"]
    assert metrics["test/accuracy"] > 0.6
    return model, folder


def test_an_explanation_shows_what_the_labels_around_a_node_add(
    trained: tuple[TrainedModel, Path],
) -> None:
    model, folder = trained
    columns = model.explain(str(folder / "old"), [3, 7, 9]).columns.to_pandas()
    effects = columns.groupby("part")["effect"].apply(lambda values: values.abs().mean())
    assert effects["labels"] > 3 * effects["gnn"]
    labels = columns[columns["part"] == "labels"]
    assert (labels["table"] == "node").all()
    assert labels["kept"].all()


def _probabilities(model: TrainedModel, uri: str, nodes: Any = None) -> np.ndarray:
    return model.predict(uri, nodes, what="probabilities")["probability"]


def test_labels_of_the_graph_at_hand_are_read(
    trained: tuple[TrainedModel, Path], tmp_path: Path
) -> None:
    model, folder = trained
    labels, source, target = _graph()
    before = _probabilities(model, str(folder / "old"))
    more = _tables(
        tmp_path / "more", labels, np.append(source, [3, 9]), np.append(target, [9, 3]), NUM_OLD
    )
    after = _probabilities(model, more)
    assert (after.argmax(1) != before.argmax(1)).mean() < 0.02
    is_right = before.argmax(1) == labels[:NUM_OLD]
    others = np.random.default_rng(1).permutation(source)
    shuffled = _probabilities(model, _tables(tmp_path / "others", labels, others, target, NUM_OLD))
    by_chance = shuffled.argmax(1) == labels[:NUM_OLD]
    assert is_right.mean() > by_chance.mean() + 0.2


def test_labels_held_out_in_training_are_never_read(
    trained: tuple[TrainedModel, Path], tmp_path: Path
) -> None:
    model, folder = trained
    labels, source, target = _graph()
    splits = hash_split(pa.array(np.arange(NUM_OLD)), [0.5, 0.25, 0.25], 0)
    flipped = labels.copy()
    flipped[np.flatnonzero(splits != 1)] = (flipped[np.flatnonzero(splits != 1)] + 1) % NUM_CLASSES
    changed = _tables(tmp_path / "flipped", flipped, source, target, NUM_OLD)
    expected = _probabilities(model, str(folder / "old"))
    assert np.array_equal(_probabilities(model, changed), expected)


def test_new_nodes_read_the_labels_around_them(
    trained: tuple[TrainedModel, Path], tmp_path: Path
) -> None:
    model, folder = trained
    labels, source, target = _graph()
    new = np.arange(NUM_OLD, NUM_NODES)
    unknown = labels.astype(object)
    unknown[new] = None
    whole = _tables(tmp_path / "whole", pa.array(unknown, pa.int64()), source, target, NUM_NODES)
    touches = (source >= NUM_OLD) | (target >= NUM_OLD)
    edges = [
        {"source": int(a), "target": int(b)}
        for a, b in zip(source[touches], target[touches], strict=True)
    ]
    nodes = [{"id": int(i), "x": [1.0]} for i in new]
    extended = model.extended(str(folder / "old"), {"node": nodes}, {"node__to__node": edges})
    found = extended.predict(what="probabilities")["probability"]
    assert found == pytest.approx(_probabilities(model, whole, new), abs=1e-4)
    assert (found.argmax(1) == labels[new]).mean() > 0.55


def test_missing_labels_are_named(
    trained: tuple[TrainedModel, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = trained
    _, source, target = _graph()
    uri = _tables(tmp_path / "bare", None, source, target, NUM_OLD)
    options = ["--data.uri", uri, "--scaling.num_workers", "0"]
    written = raygnn.infer.predict(folder / "run", tmp_path / "out", options)
    (missing,) = written.manifest["missing"]
    assert "the graph has no label 'y'" in missing
    assert missing in "".join(capsys.readouterr())
    options[1] = str(folder / "old")
    assert "missing" not in raygnn.infer.predict(folder / "run", tmp_path / "in", options).manifest
