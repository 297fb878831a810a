"""Runs whose features are crossed before the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import raygnn.train
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from tests.errors import raises
from tests.small_runs import check_workers_agree, small_config, trained_weights
from tests.tiers import slow

#: `make test` has other tests of training and inference; these are of one feature each.
pytestmark = pytest.mark.slow

#: A linear map of a node's own row.
LINEAR = {"model": {"type": "MLP", "args": {"num_layers": 1}}, "sampling": {"fanouts": [1]}}


def _graph(num_nodes: int = 600) -> Data:
    """The label of a node is the sign of the product of two of its features."""
    draw = torch.Generator().manual_seed(num_nodes)
    x = torch.randn(num_nodes, 4, generator=draw)
    edges = torch.randint(num_nodes, (2, 3 * num_nodes), generator=draw)
    return Data(x=x, y=(x[:, 0] * x[:, 2] > 0).long(), edge_index=edges)


def _config(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = {
        "scaling__num_workers": 0,
        "metrics": [{"type": "accuracy"}],
        "training__max_epochs": 12,
        "optimizer": {"type": "Adam", "args": {"lr": 0.03}},
        "data__splits": {"type": "hash"},
        **LINEAR,
    }
    return small_config(folder, **{**settings, **changes})


@pytest.mark.parametrize(
    ("interaction", "is_learned"),
    [
        ({}, True),
        *slow((None, False), ({"num_layers": 1, "rank": 3}, True)),
    ],
)
def test_a_linear_model_learns_a_product_of_features(tmp_path, interaction, is_learned):
    model = {**LINEAR["model"], "interaction": interaction}
    metrics = raygnn.train.fit(_config(tmp_path, model=model), data=_graph()).metrics
    assert (metrics["test/accuracy"] > 0.9) == is_learned, metrics
    assert is_learned or metrics["test/accuracy"] < 0.65


@pytest.mark.parametrize("interaction", [{}, *slow({"rank": 2})])
def test_saved_models_cross_too(tmp_path, interaction):
    model = {"type": "GraphSAGE", "args": {"hidden_channels": 8}, "interaction": interaction}
    changes = {"model": model, "training__max_epochs": 2, "sampling__fanouts": [-1, -1]}
    args = {"propagate_labels": False, "blend": False}
    config = _config(tmp_path, **changes, task__args=args)
    trained = raygnn.train.fit(config, data=_graph()).model
    other = _graph(90)
    exact = trained.open(other).predict(what="probabilities")["probability"]
    sampled = trained.open(other, exact=False).predict(what="probabilities")["probability"]
    np.testing.assert_allclose(sampled, exact, atol=1e-5)
    loaded = raygnn.load(str(tmp_path / "run"))
    again = loaded.open(other).predict(what="probabilities")["probability"]
    np.testing.assert_array_equal(again, exact)
    names = [name for name in trained_weights(config) if ".interactions." in name]
    assert "encoder.interactions.node.cross.layers.0.weight" in names or "rank" in interaction


def _typed_bundle(folder: Path) -> str:
    """Users and items with features of different widths, and shops without."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    nodes = {
        "user": node_rows(np.arange(200), {"x": x}, {"y": (x[:, 0] * x[:, 1] > 0).astype(int)}),
        "item": node_rows(np.arange(80), {"x": rng.normal(size=(80, 5)).astype(np.float32)}),
        "shop": node_rows(np.arange(10)),
    }
    edges = {
        ("item", "by", "user"): edge_rows(rng.integers(0, 80, 900), rng.integers(0, 200, 900)),
        ("shop", "of", "item"): edge_rows(rng.integers(0, 10, 200), rng.integers(0, 80, 200)),
    }
    uri = write_tables(GraphTables(nodes, edges), str(folder / "tables"))
    return str(ingest(uri, cache_dir=str(folder / "cache")).path)


def test_workers_agree_and_each_type_has_its_own_width(ranks, tmp_path):
    bundle = _typed_bundle(tmp_path)
    model = {"type": "Hetero", "args": {"hidden_channels": 8}, "interaction": {}}

    def config(folder: Path, size: int) -> dict:
        return small_config(
            folder,
            model=model,
            task={"type": "node_classification", "args": {"blend": False, "target": "user"}},
            data__splits={"type": "hash"},
            scaling__num_workers=size,
            training__global_batch_size=48,
            loader__batch_size=8,
            metrics=[],
        )

    _, weights = check_workers_agree(ranks, config, tmp_path, bundle)
    prefix = "encoder.interactions"
    assert weights[f"{prefix}.user.cross.layers.0.weight"].shape == (3, 3)
    assert weights[f"{prefix}.item.cross.layers.0.weight"].shape == (5, 5)
    assert not any(f"{prefix}.shop" in name for name in weights)


def test_models_that_read_no_features_are_refused(tmp_path):
    graph = _graph(100)
    model = {"type": "LightGCN", "interaction": {}}
    task = {"type": "link_prediction"}
    config = _config(tmp_path, model=model, task=task, metrics=[], sampling={"fanouts": [3]})
    with raises("model-interaction-features", "LightGCN"):
        raygnn.train.fit(config, data=graph)
