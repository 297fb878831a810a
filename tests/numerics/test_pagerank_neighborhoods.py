"""Runs whose neighborhoods are those of the most personalised PageRank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raygnn.train
from raygnn.data.tables.graph_tables import write_tables
from raygnn.prepare.synthetic import synthetic_tables
from tests.errors import raises
from tests.small_runs import check_workers_agree, small_config

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

PPR = {"ppr": {"top_k": 8}, "fanouts": [-1]}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Classes that neighbors share, and hardly a feature shows."""
    settings = {"num_nodes": 600, "num_classes": 3, "noise": 4, "homophily": 0.9, "seed": 1}
    folder = tmp_path_factory.mktemp("graph")
    return write_tables(synthetic_tables("planted_partition", **settings), str(folder / "tables"))


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "sampling": PPR,
        "training__max_epochs": 15,
        "optimizer": {"type": "Adam", "args": {"lr": 0.02}},
        "metrics": [{"type": "accuracy"}],
        "scaling__num_workers": 0,
    }
    return small_config(folder, **{**settings, **changes})


def test_neighbors_of_neighbors_help_in_one_hop(tmp_path, tables):
    alone = {"sampling": {"fanouts": [1]}, "model": {"type": "MLP", "args": {"num_layers": 1}}}
    task = {"type": "node_classification", "args": {"blend": False, "propagate_labels": False}}
    own = raygnn.train.fit(_config(tmp_path / "own", data__uri=tables, **alone)).metrics
    ppr = raygnn.train.fit(_config(tmp_path / "ppr", data__uri=tables, task=task)).metrics
    assert ppr["test/accuracy"] > own["test/accuracy"] + 0.1


def test_models_are_saved_and_infer_over_the_same_neighborhoods(tmp_path, tables):
    sampling = {**PPR, "fanouts": [-1, 4], "weight": "ppr"}
    changes = {"sampling": sampling, "training__max_epochs": 2, "training__eval": "exact"}
    model = {"type": "GCN", "args": {"hidden_channels": 8}}
    task = {"type": "node_classification", "args": {"blend": False, "edge_weight": "ppr"}}
    config = _config(tmp_path, data__uri=tables, model=model, task=task, **changes)
    result = raygnn.train.fit(config)
    exact = raygnn.load(str(tmp_path / "run")).open(tables)
    found = exact.predict(what="probabilities")["probability"]
    again = result.model.open(tables).predict(what="probabilities")["probability"]
    np.testing.assert_array_equal(found, again)
    evaluated = result.model.evaluate(tables, split="test")
    assert evaluated["accuracy"] == pytest.approx(result.metrics["test/accuracy"])


def test_workers_agree(ranks, small_bundle_path, tmp_path):
    def config(folder: Path, size: int) -> dict[str, Any]:
        changes = {"scaling__num_workers": size, "training__max_epochs": 2}
        return _config(folder, training__global_batch_size=96, **changes)

    check_workers_agree(ranks, config, tmp_path, small_bundle_path, "train/loss")


def test_links_are_refused(tmp_path, tables):
    task = {"type": "link_prediction"}
    with raises("sampling-ppr-links", "sampling.ppr"):
        raygnn.train.fit(_config(tmp_path, data__uri=tables, task=task, metrics=[]))
