"""Training on the whole graph: steps, results for any number of workers, and plain PyG's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import IngestOptions, ingest
from raygnn.data.splits import make_splits
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.loops.callbacks import Callback
from raygnn.loops.engine import Engine
from tests.small_runs import (
    check_workers_agree,
    read_history,
    run_rank,
    small_config,
    trained_weights,
)
from tests.tiers import slow

EPOCHS = 4


def _config(folder: Path, world_size: int = 0, **changes: Any) -> dict[str, Any]:
    config = small_config(
        folder,
        **{
            "sampling": {"type": "full"},
            "scaling__num_workers": world_size,
            "training__max_epochs": EPOCHS,
            "loader": {},
            **changes,
        },
    )
    return config


class SaveStart(Callback):
    """Writes the weights that training begins with."""

    def __init__(self, path: str) -> None:
        self._path = path

    def on_train_start(self, engine: Engine) -> None:
        torch.save(engine.optimization.module.state_dict(), self._path)


class Plain(nn.Module):
    """Two of PyG's layers, with parameters named as in raygnn's encoders."""

    def __init__(self, conv: type[nn.Module], width: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([conv(8, width), conv(width, num_classes)])

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x, edge_index).relu(), edge_index)


def _plain_losses(
    bundle: Bundle, module: Plain, start: dict[str, torch.Tensor]
) -> list[tuple[float, float]]:
    """Training and validation loss of each epoch of a loop as PyG's examples have it."""
    prefix = "encoder.module."
    weights = {name.removeprefix(prefix): rows for name, rows in start.items()}
    module.load_state_dict(weights)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    (edge_type,) = bundle.edge_types
    csc = bundle.csc(edge_type)
    target = np.repeat(np.arange(bundle.num_nodes("node")), np.diff(csc.indptr))
    edge_index = torch.from_numpy(np.stack([csc.indices, target]).astype(np.int64))
    x = torch.from_numpy(np.array(bundle.column("node", "x"))).float()
    y = torch.from_numpy(np.array(bundle.column("node", "y"))).long().reshape(-1)
    splits = make_splits(bundle, "node", None, "y", 0)
    losses = []
    for _ in range(EPOCHS):
        module.train()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x, edge_index)[splits.train], y[splits.train])
        loss.backward()
        optimizer.step()
        module.eval()
        with torch.no_grad():
            found = nn.functional.cross_entropy(module(x, edge_index)[splits.val], y[splits.val])
        losses.append((loss.item(), found.item()))
    return losses


@pytest.mark.parametrize(
    ("model", "args", "conv"),
    [("GCN", {}, GCNConv), ("GraphSAGE", {}, SAGEConv), ("GAT", {"num_heads": 1}, GATConv)],
)
def test_losses_are_those_of_a_plain_loop(small_bundle_path, tmp_path, model, args, conv):
    changes = {
        "model": {"type": model, "args": {"hidden_channels": 16, **args}},
        "task": {
            "type": "node_classification",
            "args": {"blend": False, "propagate_labels": False},
        },
        "data": {"standardize": False},
        "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
        "callbacks": [
            {
                "type": "tests.numerics.test_full_graph.SaveStart",
                "args": {"path": str(tmp_path / "start.pt")},
            }
        ],
    }
    run_rank(_config(tmp_path, **changes), small_bundle_path)
    start = torch.load(tmp_path / "start.pt", weights_only=True)
    expected = _plain_losses(Bundle.open(small_bundle_path), Plain(conv, 16, 3), start)
    found = [(row["train/loss"], row["val/loss"]) for row in read_history(tmp_path)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_step_is_an_epoch_of_all_training_seeds(small_bundle_path, tmp_path):
    metrics = run_rank(_config(tmp_path), small_bundle_path)
    assert (metrics["step"], metrics["epoch"], metrics["samples"]) == (EPOCHS, EPOCHS, 182 * EPOCHS)


MODELS: dict[str, dict[str, Any]] = {
    "GCN": {"type": "GCN", "args": {"hidden_channels": 8, "norm": "batch", "dropout": 0.3}},
    "RGCN": {"type": "RGCN", "args": {"hidden_channels": 8, "num_layers": 3}},
    "own": {"type": "tests.user_code.Normed"},
}


@pytest.mark.parametrize("name", ["GCN", *slow(*(name for name in MODELS if name != "GCN"))])
def test_results_are_the_same_bits_for_any_number_of_workers(
    ranks, small_bundle_path, tmp_path, name
):
    config = partial(_config, model=MODELS[name])
    sizes = (1, 2, 3)
    check_workers_agree(ranks, config, tmp_path, small_bundle_path, sizes=sizes, in_bits=True)
    first, *others = (read_history(tmp_path / str(size)) for size in sizes)
    assert all(history == first for history in others)


@pytest.fixture(scope="module")
def hetero_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Authors, labelled by what they write."""
    rng = np.random.default_rng(0)
    author = rng.integers(0, 90, 240)
    paper = rng.integers(0, 20, 240) * 3 + author % 3
    x = np.eye(3, 5)[np.arange(60) % 3] + rng.normal(0, 0.3, (60, 5))
    tables = GraphTables(
        {
            "author": node_rows(
                np.arange(90), {"x": rng.random((90, 4))}, labels={"y": np.arange(90) % 3}
            ),
            "paper": node_rows(np.arange(60), {"x": x}),
        },
        {
            ("author", "writes", "paper"): edge_rows(author, paper),
            ("paper", "cites", "paper"): edge_rows(paper[:100], paper[100:200]),
        },
    )
    folder = tmp_path_factory.mktemp("hetero")
    uri = write_tables(tables, str(folder / "tables"))
    return str(ingest(uri, IngestOptions(reverse_edges=True), str(folder / "cache")).path)


@pytest.mark.parametrize(
    "model",
    [
        {"type": "Hetero", "args": {"hidden_channels": 8}},
        *slow(
            {"type": "HGT", "args": {"hidden_channels": 8, "num_heads": 2, "num_layers": 3}},
            {"type": "RGCN", "args": {"hidden_channels": 8}},
            {"type": "SimpleHGN", "args": {"hidden_channels": 8, "num_heads": 2}},
        ),
    ],
    ids=lambda model: model["type"],
)
def test_graphs_of_several_types_are_learned_from(hetero_path, tmp_path, model):
    changes = {
        "model": model,
        "data": {"splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]}},
        "optimizer": {"type": "Adam", "args": {"lr": 0.02}},
        "training__max_epochs": 60,
        "training__validate_every": {"epochs": 30},
    }
    found = {}
    for how in ("sampled", "exact"):
        config = _config(tmp_path / how, **changes, training__eval=how)
        found[how] = run_rank(config, hetero_path)
    assert found["sampled"]["test/accuracy"] > 0.8
    # One forward pass gives what is encoded layer by layer.
    assert found["sampled"]["val/loss"] == pytest.approx(found["exact"]["val/loss"], rel=1e-4)


def test_layers_are_those_of_the_model_or_of_the_fanouts(small_bundle_path, tmp_path):
    for number, changes in (
        (3, {"model__args": {"num_layers": 3, "hidden_channels": 8}}),
        (2, {"model__args": {"hidden_channels": 8}}),
        (1, {"model__args": {"hidden_channels": 8}, "sampling__fanouts": [5]}),
    ):
        config = _config(tmp_path / str(number), **{**changes, "sampling__type": "full"})
        run_rank(config, small_bundle_path)
        layers = {name.split(".")[3] for name in trained_weights(config) if ".layers." in name}
        assert len(layers) == number
