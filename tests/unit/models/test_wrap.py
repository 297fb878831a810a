"""Users' modules on the sampled subgraph."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from raygnn.models.subgraph_module import SubgraphModule, TypedSubgraphModule
from tests.batches import batch_of
from tests.errors import raises

X, EDGE_INDEX = torch.arange(10.0).view(5, 2), torch.tensor([[2, 3, 4, 4], [0, 1, 1, 2]])


def encoded(module: nn.Module, **columns: Tensor) -> Any:
    """What a wrapped module gives of a batch with these columns of edges."""
    return SubgraphModule(module)(batch_of(X, EDGE_INDEX, 2, **columns), {"node": X})["node"]


class Recorder(nn.Module):
    """Returns its input and keeps what it was called with."""

    called: dict[str, Any]

    def _take(self, x: Tensor, edge_index: Tensor, **further: Tensor) -> Tensor:
        self.called = {"edge_index": edge_index, **further}
        return x


class Plain(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self._take(x, edge_index)


class Weighted(Recorder):
    def forward(self, h: Tensor, adj: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self._take(h, adj, edge_weight=edge_weight)


class NeedsAttributes(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self._take(x, edge_index, edge_attr=edge_attr)


class Anything(Recorder):
    def forward(self, *args: Tensor, **further: Tensor) -> Tensor:
        return self._take(*args, **further)


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> dict[str, Tensor]:
        return {"mean": x, "spread": x[:, 0]}


class OneRow(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x.mean(0)


class Pair(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class NeedsMore(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return x


class FeaturesOnly(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("module_type", [Plain, Weighted, Anything])
def test_the_seeds_rows_are_returned(module_type: type[Recorder]) -> None:
    module = module_type()
    assert torch.equal(encoded(module, edge_weight=torch.ones(4)), X[:2])
    assert module.called["edge_index"] is EDGE_INDEX


def test_edge_columns_go_to_parameters_of_their_name() -> None:
    weight, attr = torch.rand(4), torch.rand(4, 3)
    plain, weighted, attributed = Plain(), Weighted(), NeedsAttributes()
    for module in (plain, weighted, attributed):
        encoded(module, edge_weight=weight, edge_attr=attr)
    assert set(plain.called) == {"edge_index"}
    assert weighted.called["edge_weight"] is weight
    assert attributed.called["edge_attr"] is attr


def test_an_optional_column_may_lack() -> None:
    module = Weighted()
    encoded(module)
    assert module.called["edge_weight"] is None


def test_a_dictionary_of_outputs_is_cut_by_entry() -> None:
    out = encoded(TwoOutputs())
    assert out["mean"].shape == (2, 2)
    assert out["spread"].tolist() == [0.0, 2.0]


def test_models_of_pyg_work() -> None:
    model, weight = pyg.GCN(2, 8, 2, 3), torch.rand(4)
    expected = model(X, EDGE_INDEX, edge_weight=weight)[:2]
    torch.testing.assert_close(encoded(model, edge_weight=weight), expected)
    conv = pyg.GCNConv(2, 3)
    assert encoded(conv, edge_weight=weight).shape == (2, 3)


def test_a_forward_that_needs_something_else_is_refused() -> None:
    with raises("model-forward", "NeedsMore", "x, edge_index, batch"):
        SubgraphModule(NeedsMore())
    with raises("model-forward", "FeaturesOnly", "x"):
        SubgraphModule(FeaturesOnly())


def test_a_column_that_the_graph_lacks_is_named() -> None:
    with raises("model-edge-input-missing", "edge_attr"):
        encoded(NeedsAttributes())


def test_an_output_without_a_row_per_node_is_refused() -> None:
    with raises("model-result", 2, 5):
        encoded(OneRow())
    with raises("model-result", "tuple", 5):
        encoded(Pair())


class Typed(nn.Module):
    """A layer for each edge type, with sizes that it finds out."""

    def __init__(self, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        convs = {edge_type: pyg.SAGEConv((-1, -1), 4) for edge_type in edge_types}
        self.conv = pyg.HeteroConv(convs)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Any:
        return self.conv(x_dict, edge_index_dict)


class OfUsers(Typed):
    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Any:
        return super().forward(x_dict, edge_index_dict)["user"]


@pytest.mark.parametrize("module_type", [Typed, OfUsers])
def test_a_module_of_dictionaries_gets_every_type(module_type: type[Typed]) -> None:
    likes, liked = ("user", "likes", "item"), ("item", "liked", "user")
    edges, empty = torch.tensor([[0, 1, 1], [0, 0, 1]]), torch.zeros(2, 0, dtype=torch.int64)
    rows = {"user": torch.rand(3, 2), "item": torch.rand(2, 5)}
    users, items = batch_of(rows["user"], edges, 2), batch_of(rows["item"], empty, 0)
    batch = replace(
        users,
        nodes={"user": users.nodes["node"], "item": items.nodes["node"]},
        edges={liked: users.edges["node", "to", "node"]},
    )
    module = module_type([likes, liked])
    wrapped = TypedSubgraphModule(module, {"user": 2, "item": 5}, [likes, liked])
    wrapped.initialize({})
    expected = Typed.forward(wrapped.module, rows, {likes: empty, liked: edges})["user"][:2]
    assert torch.equal(wrapped(batch, rows)["user"], expected)


def test_no_module_that_pyg_generates_stays(tmp_path: Path) -> None:
    """A forked process leaves those of its parent alone."""
    code = """
import inspect, os, tempfile
from pathlib import Path
from torch_geometric import nn as pyg
import raygnn.models.subgraph_module
from raygnn.models import GAT, GIN, GATv2, GraphSAGE, Transformer

files = lambda: {p for p in Path(tempfile.gettempdir()).rglob("*") if p.suffix in (".py", ".pyc")}
for encoder in (GAT, GIN, GATv2, GraphSAGE, Transformer):
    encoder(2, 2, hidden_channels=8)
assert not files(), files()
conv = raygnn.models.subgraph_module.SubgraphModule(pyg.GATConv(2, 2)).module
assert not files(), files()  # workers of Ray end without atexit
assert "def propagate" in inspect.getsource(conv.propagate)
pyg.SAGEConv(2, 2), pyg.Sequential("x, e", [(pyg.GCNConv(2, 2), "x, e -> x")])
made = files()
assert len(made) >= 3, made
if not os.fork():
    raise SystemExit
os.wait()
assert files() == made, files()
"""
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=env, check=True, timeout=120)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
