"""What the driver finds wrong with settings against imbalance, before a worker starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raygnn.config import load_config
from raygnn.data.bundle import Bundle
from raygnn.data.standardization import LabelCounts
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.runtime.data_checks import find_spec
from tests.errors import raises
from tests.graph_writer import ingest_tables
from tests.small_runs import small_config


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """40 nodes, of which 10 are fraud, with two labels each."""
    folder, ids = tmp_path_factory.mktemp("graph"), np.arange(40)
    labels = {
        "kind": pa.array(np.where(ids % 4 == 0, "fraud", "fair")),
        "flags": np.stack([ids % 2, ids % 5 == 0], axis=1).astype(np.int64),
        "price": ids.astype(np.float32),
    }
    nodes = node_rows(ids, {"x": np.ones((40, 2), np.float32)}, labels)
    tables = GraphTables({"n": nodes}, {("n", "to", "n"): edge_rows(ids, ids[::-1])})
    return ingest_tables(folder, tables)


def _spec(tmp_path: Path, bundle: Bundle, label: str, **changes: Any) -> Any:
    task = {"type": "node_classification", "args": {"label": label}}
    splits = {"type": "hash", "fractions": [1.0, 0.0, 0.0]}
    config = small_config(tmp_path, metrics=[], task=task, data__splits=splits, **changes)
    return find_spec(load_config(config), bundle)


def _check(tmp_path: Path, **changes: Any) -> None:
    config = small_config(tmp_path, **changes)
    load_config(config, allow_modules=["my_pkg"]).check_arguments()


def _loss(name: str, **args: Any) -> dict[str, Any]:
    return {"losses": [{"type": name, "args": args}]}


def test_labels_of_training_are_counted(tmp_path, bundle):
    def counts(label: str) -> Any:
        return _spec(tmp_path, bundle, label).output.label_counts

    assert counts("kind") == LabelCounts(40, (30, 10))
    assert counts("flags") == LabelCounts(40, (20, 8))
    assert counts("price") is None


def test_classes_are_weighed_by_name(tmp_path, bundle):
    changes = _loss("cross_entropy", class_weights={"fraud": 3})
    assert _spec(tmp_path, bundle, "kind", **changes).output.class_names == ("fair", "fraud")
    with raises("loss-class-weights-class", "class_weights.frod", "fraud"):
        _spec(tmp_path, bundle, "kind", **_loss("cross_entropy", class_weights={"frod": 3}))
    with raises("loss-class-weights-count", "class_weights", 2):
        _spec(tmp_path, bundle, "kind", **_loss("cross_entropy", class_weights=[1, 2, 3]))


def test_labels_are_balanced_one_by_one(tmp_path, bundle):
    changes = _loss("binary_cross_entropy", pos_weight="balanced")
    assert _spec(tmp_path, bundle, "flags", **changes) is not None


def test_words_are_checked_without_a_graph(tmp_path):
    with raises("loss-class-weights", "losses.0.args.class_weights"):
        _check(tmp_path, **_loss("cross_entropy", class_weights="even"))
    with raises("component-argument-set", "label_counts"):
        _check(tmp_path, **_loss("cross_entropy", label_counts=[1, 2]))
