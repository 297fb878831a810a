"""What self-supervised learning finds in a graph: nodes, and what a probe reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.loops.tasks.self_supervised.probe import INVERSE_PENALTIES, ProbeRows, fit_probe
from raygnn.loops.tasks.self_supervised.target import (
    EmbeddingOutput,
    SelfSupervisedArguments,
    SelfSupervisedTarget,
)
from tests.errors import raises
from tests.graph_writer import ingest_tables

SPLITS = {"type": "hash", "fractions": [0.5, 0.2, 0.3]}


def _bundle(folder: Path, labels: dict[str, dict[str, np.ndarray]]) -> Bundle:
    x = {"x": np.ones((40, 2), np.float32)}
    nodes = {name: node_rows(np.arange(40), x, labels.get(name)) for name in ("user", "film")}
    edges = {("user", "rates", "film"): edge_rows(np.arange(40), np.arange(40))}
    return ingest_tables(folder, GraphTables(nodes, edges))


def _find(bundle: Bundle, splits: Any = SPLITS, **args: Any) -> SelfSupervisedTarget:
    content = {"data": {"uri": "unread", "splits": splits}, "task": "self_supervised"}
    config = load_config(content).config
    return SelfSupervisedTarget.find(bundle, config, SelfSupervisedArguments.of(args))


def test_the_type_with_labels_is_learned_and_probed(tmp_path):
    target = _find(_bundle(tmp_path, {"film": {"genre": np.arange(40) % 3}}))
    assert target.output.ends == ("film", "film")
    probe = target.output.probe
    assert probe is not None
    assert (probe.label, probe.problem, probe.num_outputs) == ("genre", "multi_class", 3)
    assert sum(map(len, (target.splits.train, target.splits.val, target.splits.test))) == 40
    content = dict(target.output.to_content())
    assert EmbeddingOutput.of_content(content) == target.output


def test_without_labels_or_splits_there_is_no_probe(tmp_path):
    bundle = _bundle(tmp_path, {"film": {"genre": np.arange(40) % 3}})
    target = _find(bundle, target="user")
    assert target.output.probe is None
    assert len(target.splits.train) + len(target.splits.val) + len(target.splits.test) == 40
    target = _find(bundle, None)
    assert target.output.probe is None
    assert len(target.splits.val) == 0
    assert target.summary(bundle)[-1].startswith("no probe")


def test_what_is_not_named_is_asked_for(tmp_path):
    labels = {"film": {"genre": np.arange(40) % 3, "year": np.arange(40) % 2}}
    bundle = _bundle(tmp_path, labels)
    with raises("labels-unknown", "genre", "year"):
        _find(bundle)
    assert _find(bundle, label="year").output.probe.label == "year"
    with raises("graph-node-type-unknown", "user", "film"):
        _find(bundle, target="none")
    with raises("graph-node-type-unknown", "user", "film"):
        _find(_bundle(tmp_path / "other", {}))


_UNKNOWN = {"type": "bgrl", "args": {"mask": 1}}


@pytest.mark.parametrize(
    ("changes", "id"),
    [
        ({"losses": [{"type": "cross_entropy"}]}, "method-losses"),
        (
            {"task": {"type": "self_supervised", "args": {"method": _UNKNOWN}}},
            "component-argument-unknown",
        ),
    ],
)
def test_settings_without_effect_are_refused(changes, id):
    loaded = load_config({"data": {"uri": "unread"}, "task": "self_supervised", **changes})
    with raises(id):
        loaded.check_arguments()


def test_embedding_std_may_be_monitored():
    stopping = {"monitor": "val/embedding_std", "mode": "max"}
    content = {"data": {"uri": "u"}, "task": "self_supervised", "early_stopping": stopping}
    load_config(content).check_arguments()


def _rows(num_nodes: int, seed: int, noise: float = 0.5) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num_nodes)
    rows = np.eye(6)[labels] + noise * rng.normal(size=(num_nodes, 6))
    return torch.from_numpy(rows.astype(np.float32)), labels


def test_it_is_the_best_of_scikit_learns_fits():
    (x, y), (x_val, y_val) = _rows(200, 0), _rows(300, 1)
    probe = fit_probe("multi_class", 3, ProbeRows(x, y), ProbeRows(x_val, y_val))
    unit, unit_val = (torch.nn.functional.normalize(rows).numpy() for rows in (x, x_val))
    scores = [
        LogisticRegression(C=c, max_iter=1000).fit(unit, y).score(unit_val, y_val)
        for c in INVERSE_PENALTIES
    ]
    found = float((probe(x_val).argmax(1).numpy() == y_val).mean())
    assert found == pytest.approx(max(scores), abs=0.011)
    assert probe.inverse_penalty in INVERSE_PENALTIES
    # Scale does not count.
    assert torch.equal(probe(x_val).argmax(1), probe(7 * x_val).argmax(1))


@pytest.mark.parametrize("num_outputs", [2, 3])
def test_classes_that_training_lacks_are_never_predicted(num_outputs):
    x, y = _rows(90, 0)
    given = y < num_outputs - 1
    probe = fit_probe("multi_class", num_outputs, ProbeRows(x[given], y[given]), None)
    assert set(probe(x).argmax(1).tolist()) <= set(range(num_outputs - 1))


def test_two_classes():
    x, y = _rows(200, 0)
    two = y < 2
    probe = fit_probe("multi_class", 2, ProbeRows(x[two], y[two]), None)
    assert (probe(x[two]).argmax(1).numpy() == y[two]).mean() > 0.85


def test_labels_and_values():
    x, y = _rows(400, 0, noise=0.2)
    labels = np.stack([y == 0, y != 1, np.ones_like(y)], axis=1).astype(np.int8)
    probe = fit_probe("multi_label", 3, ProbeRows(x, labels), ProbeRows(x, labels))
    assert ((probe(x) > 0).numpy() == labels).mean() > 0.95
    values = (3.0 * y + 10).astype(np.float32)
    probe = fit_probe("regression", 1, ProbeRows(x, values), ProbeRows(x, values))
    assert np.abs(probe(x).numpy()[:, 0] - values).mean() < 0.8


def test_noise_gives_chance():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(1500, 16)).astype(np.float32))
    y = rng.integers(0, 3, 1500)
    parts = [ProbeRows(x[a:b], y[a:b]) for a, b in ((0, 500), (500, 700), (700, 1500))]
    probe = fit_probe("multi_class", 3, *parts[:2])
    accuracy = (probe(parts[2].rows).argmax(1).numpy() == parts[2].labels).mean()
    assert abs(accuracy - 1 / 3) < 4 * (2 / 9 / 800) ** 0.5
