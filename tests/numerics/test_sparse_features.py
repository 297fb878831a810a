"""Whole runs on sparse features: those of dense rows, for any number of workers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.tables.columns import sparse_rows
from raygnn.data.tables.graph_tables import node_rows, write_tables
from raygnn.models import GraphSAGE
from raygnn.prepare.synthetic import synthetic_tables
from tests.small_runs import (
    check_workers_agree,
    read_history,
    run_rank,
    small_config,
    trained_weights,
)
from tests.tiers import slow

WIDTH = 64


class DenseSAGE(GraphSAGE):
    """The same model, which does not say that it takes sparse input."""

    takes_sparse_input = False


class Recorder(nn.Module):
    """A user's module; keeps whether x was sparse."""

    takes_sparse_input = True
    was_sparse: bool | None = None

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        type(self).was_sparse = x.is_sparse
        out: Tensor = self.lin(x)
        return out


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """300 nodes of three classes, each with three words, two of which tell of its class."""
    folder = tmp_path_factory.mktemp("graph")
    tables = synthetic_tables(
        "planted_partition", num_nodes=300, num_classes=3, num_features=1, seed=1
    )
    (name,), (nodes,) = tables.nodes.keys(), tables.nodes.values()
    rng = np.random.default_rng(0)
    ids = nodes.table[nodes.id].to_numpy()
    label = nodes.table[next(iter(nodes.labels))].to_numpy()
    words = rng.integers(0, WIDTH, (len(ids), 3))
    words[:, :2] = words[:, :2] // 3 * 3 % 60 + label[:, None]
    x = np.zeros((len(ids), WIDTH), np.float32)
    x[np.arange(len(ids))[:, None], words] = [0.5, 1.5, 2.0]
    rows = node_rows(ids, {"x": sparse_rows(x)}, {"y": label}, id_name=nodes.id)
    if nodes.split is not None:
        table = rows.table.append_column(nodes.split, nodes.table[nodes.split])
        rows = replace(rows, table=table, split=nodes.split)
    uri = write_tables(replace(tables, nodes={name: rows}), str(folder / "tables"))
    made = ingest(uri, IngestOptions(), str(folder / "cache"))
    assert made.columns(name)["x"].sparse
    return made


def _config(folder: Path, world_size: int = 1, **changes: Any) -> dict[str, Any]:
    settings = {
        "scaling__num_workers": world_size,
        "training__global_batch_size": 96,
        "training__max_epochs": 6,
        "optimizer": {"type": "Adam", "args": {"lr": 0.05}},
        "task": {
            "type": "node_classification",
            "args": {"blend": False, "propagate_labels": False},
        },
    }
    return small_config(folder, **{**settings, **changes})


def _run(bundle: Bundle, folder: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = _config(folder, **changes)
    return run_rank(config, str(bundle.path)), trained_weights(config)


@pytest.mark.parametrize("eval_mode", ["exact", *slow("sampled")])
def test_a_run_is_that_of_dense_rows(bundle, tmp_path, eval_mode):
    args = {"hidden_channels": 8, "norm": "batch", "residual": True}
    runs = [
        _run(bundle, tmp_path / name, training__eval=eval_mode, model__type=name, model__args=args)
        for name in ("GraphSAGE", f"{__name__}.DenseSAGE")
    ]
    (metrics, weights), (of_dense, dense_weights) = runs
    for name, weight in weights.items():
        torch.testing.assert_close(weight, dense_weights[name], rtol=1e-4, atol=1e-5)
    losses, dense_losses = (
        [row["train/loss"] for row in read_history(tmp_path / name)]
        for name in ("GraphSAGE", f"{__name__}.DenseSAGE")
    )
    assert losses == pytest.approx(dense_losses, rel=1e-4)
    assert metrics["test/accuracy"] == pytest.approx(of_dense["test/accuracy"], abs=0.02)
    assert metrics["test/accuracy"] > 0.6


@pytest.mark.parametrize("model", ["GraphSAGE", *slow("GIN")])
def test_any_number_of_workers_trains_the_same(ranks, bundle, tmp_path, model):
    changes = {
        "model__type": model,
        "model__args": {"hidden_channels": 8, "dropout": 0.3, "input_dropout": 0.3},
    }
    config = partial(_config, **changes)
    check_workers_agree(ranks, config, tmp_path, str(bundle.path))


def test_a_module_of_ones_own_takes_a_sparse_tensor(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(Recorder, "was_sparse", None)
    config = small_config(tmp_path, model__type=f"{__name__}.Recorder", model__args={})
    run_rank(config, str(bundle.path))
    assert Recorder.was_sparse
