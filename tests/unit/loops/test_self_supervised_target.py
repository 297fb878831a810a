"""What self-supervised learning finds in a graph: nodes, and what a probe reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
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
