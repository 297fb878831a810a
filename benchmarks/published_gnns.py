"""The tuned models as the published script has them: PyG's layers on the whole graph.

Architecture, initial weights, optimizer and choice of the epoch follow `medium_graph` of
github.com/LUOyk1999/tunedGNN (Luo, Shi and Wu 2024). So they say what the published settings give
on this machine and these splits, beside what raygnn gives.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from plain_pyg import FullGraph
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.utils import add_self_loops, remove_self_loops
from torchmetrics.functional.classification import binary_auroc

from raygnn.config import Config

_NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, None: nn.Identity}


class PublishedModel(nn.Module):
    """Convolutions, each with norm, ReLU and dropout, and a linear head.

    Args:
        args: `model.args` of the config.
    """

    def __init__(self, kind: str, in_channels: int, num_classes: int, args: dict[str, Any]) -> None:
        super().__init__()
        width, num_layers = args["hidden_channels"], args["num_layers"]
        pairs = list(pairwise([in_channels, *[width] * num_layers]))
        self._dropout, self._is_residual = args["dropout"], args.get("residual", False)
        self.convs = nn.ModuleList(_convolution(kind, *pair) for pair in pairs)
        self.linears = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.norms = nn.ModuleList(_NORMS[args.get("norm")](width) for _ in pairs)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Returns [num_nodes, num_classes]."""
        for conv, linear, norm in zip(self.convs, self.linears, self.norms, strict=True):
            out = conv(x, edges)
            x = norm(out + linear(x) if self._is_residual else out).relu()
            x = functional.dropout(x, self._dropout, self.training)
        scores: Tensor = self.head(x)
        return scores


def _convolution(kind: str, in_channels: int, out_channels: int) -> nn.Module:
    if kind == "GCN":
        return GCNConv(in_channels, out_channels, cached=True)
    if kind == "GraphSAGE":
        return SAGEConv(in_channels, out_channels)
    return GATConv(in_channels, out_channels, add_self_loops=False, bias=False)


def with_self_loops(graph: FullGraph, kind: str) -> Tensor:
    """The edges with each node's to itself, as the script has them: CSR, of GAT as pairs."""
    num_nodes = len(graph.y)
    target, source = graph.adjacency.to_sparse_coo().coalesce().indices()
    edge_index, _ = remove_self_loops(torch.stack([source, target]))
    edge_index, _ = add_self_loops(edge_index, num_nodes=num_nodes)
    if kind == "GAT":
        return edge_index
    ones = torch.ones(edge_index.shape[1])
    # The same pair twice is one edge there.
    summed = torch.sparse_coo_tensor(edge_index.flip(0), ones, (num_nodes, num_nodes)).coalesce()
    once = torch.sparse_coo_tensor(
        summed.indices(), torch.ones_like(summed.values()), summed.shape, is_coalesced=True
    )
    return once.to_sparse_csr()


def train_published(graph: FullGraph, config: Config, metric: str) -> float:
    """Trains as the script does, with each epoch validated.

    Args:
        metric: `accuracy` or `auroc`.
    Returns:
        The test figure in the epoch with the best validation.
    """
    torch.manual_seed(config.seed)
    kind, args = config.model.type, dict(config.model.args)
    model = PublishedModel(kind, graph.x.shape[1], graph.num_classes, args)
    edges = with_self_loops(graph, kind)
    optimizer = torch.optim.Adam(model.parameters(), **config.optimizer.args)
    train, best, found = graph.splits["train"], -1.0, 0.0
    assert config.training.max_epochs is not None
    for _ in range(config.training.max_epochs):
        model.train()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(graph.x, edges)[train], graph.y[train])
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            scores = model(graph.x, edges)
        value = _metric(scores, graph, "val", metric)
        if value > best:
            best, found = value, _metric(scores, graph, "test", metric)
    return found


def _metric(scores: Tensor, graph: FullGraph, split: str, metric: str) -> float:
    ids = graph.splits[split]
    scores, y = scores[ids], graph.y[ids]
    if metric == "auroc":
        return float(binary_auroc(scores.softmax(dim=1)[:, 1], y))
    return float((scores.argmax(1) == y).double().mean())
