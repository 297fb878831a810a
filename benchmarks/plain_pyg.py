"""The peer of `accuracy.py`: PyG's own layers on the whole graph, in one process, without raygnn.

Only the graph, its splits, the config's numbers and the early-stopping rule are shared.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from raygnn.config import Config
from raygnn.data.bundle import Bundle, SparseColumn
from raygnn.data.splits import make_splits
from raygnn.loops.early_stopping import BestTracker, EarlyStopper

# torch says of its CSR tensors, which PyG makes too, that they are in beta and go unchecked.
warnings.filterwarnings("ignore", message="Sparse (invariant|CSR)")

_ACTIVATIONS = {"relu": functional.relu, "elu": functional.elu}
_NORMS: dict[str, type[nn.Module]] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}


@dataclass(frozen=True)
class FullGraph:
    """A graph in memory.

    Attributes:
        x: float32 [num_nodes, num_features].
        adjacency: sparse CSR [num_nodes, num_nodes], rows are destinations: PyG then sums with
            sparse products and holds no row per edge.
        y: int64 [num_nodes].
        splits: node ids of train, val and test.
    """

    x: Tensor
    adjacency: Tensor
    y: Tensor
    num_classes: int
    splits: dict[str, Tensor]

    @classmethod
    def of_bundle(cls, bundle: Bundle, config: Config) -> FullGraph:
        """Takes graph, features, labels and splits as the raygnn run of that config has them."""
        (node_type,), (edge_type,) = bundle.node_types, bundle.edge_types
        labels = np.asarray(bundle.column(node_type, "y"))
        splits = make_splits(bundle, node_type, config.data.splits, "y", config.seed)
        csc = bundle.csc(edge_type)
        return cls(
            x=_dense(bundle.column(node_type, "x")),
            adjacency=_csr(csc.indptr, csc.indices, None, len(labels)),
            y=torch.from_numpy(labels).long(),
            num_classes=int(labels.max()) + 1,
            splits={name: torch.from_numpy(splits[name]) for name in ("train", "val", "test")},
        )


class FullGraphModel(nn.Module):
    """Stacked PyG layers with what `model.args` of a raygnn encoder says.

    Args:
        type_: GCN, GraphSAGE or GAT.
        args: `model.args` of the config.
    Raises:
        ValueError: an argument or its value has no counterpart here.
    """

    def __init__(
        self, type_: str, args: Mapping[str, Any], in_channels: int, out_channels: int, depth: int
    ) -> None:
        super().__init__()
        given = dict(args)
        hidden = given.pop("hidden_channels")
        self.rates = (given.pop("input_dropout", 0.0), given.pop("dropout", 0.0))
        self.activation = _ACTIVATIONS[given.pop("activation", "relu")]
        norm = given.pop("norm", None)
        heads = {name: given.pop(name) for name in sorted(given) if name in _HEAD_ARGUMENTS}
        if given:
            raise ValueError(f"model.args {sorted(given)} have no counterpart in the plain run.")
        widths = [in_channels, *[hidden] * (depth - 1), out_channels]
        self.layers = nn.ModuleList(
            _layer(type_, widths[i], widths[i + 1], heads, is_output=i == depth - 1)
            for i in range(depth)
        )
        self.norms = nn.ModuleList(
            nn.Identity() if norm is None else _NORMS[norm](hidden) for _ in range(depth - 1)
        )

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Returns [num_nodes, out_channels]."""
        for i, layer in enumerate(self.layers):
            x = layer(functional.dropout(x, self.rates[min(i, 1)], self.training), adjacency)
            if i < len(self.norms):
                x = self.activation(self.norms[i](x))
        return x


def train_full_graph(graph: FullGraph, config: Config) -> float:
    """Trains on the whole graph and tests with the weights of the best validation.

    A step is one pass over all training nodes. Validations are as many steps apart as in the
    minibatch run, the limit of steps and the patience are the same.

    Returns:
        Test accuracy.
    """
    torch.manual_seed(config.seed)
    depth = config.sampling.num_hops
    model = FullGraphModel(
        config.model.type, config.model.args, graph.x.shape[1], graph.num_classes, depth
    )
    optimizer_class = getattr(torch.optim, config.optimizer.type)
    optimizer = optimizer_class(model.parameters(), **config.optimizer.args)
    stopping, training, every = (
        config.early_stopping,
        config.training,
        config.training.validate_every,
    )
    if stopping is None or training.max_epochs is None or every is None or every.epochs is None:
        raise ValueError("The plain run needs early stopping, and limit and period in epochs.")
    stopper = EarlyStopper(
        BestTracker(stopping.monitor or "val/loss", stopping.mode), stopping.patience
    )
    steps_per_epoch = math.ceil(len(graph.splits["train"]) / config.batch.global_batch_size)
    interval = every.epochs * steps_per_epoch
    best: dict[str, Tensor] = {}
    for step in range(1, training.max_epochs * steps_per_epoch + 1):
        _train_step(model, graph, optimizer)
        if step % interval:
            continue
        metrics = _evaluate(model, graph, "val")
        has_to_stop = stopper.should_stop(stopper.tracker.value_of(metrics))
        if stopper.num_without_improvement == 0:
            best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if has_to_stop:
            break
    model.load_state_dict(best)
    return _evaluate(model, graph, "test")["test/accuracy"]


_HEAD_ARGUMENTS = ("num_heads", "num_output_heads", "attn_dropout")


def _layer(
    type_: str, in_channels: int, out_channels: int, heads: Mapping[str, Any], *, is_output: bool
) -> nn.Module:
    if type_ == "GCN":
        return GCNConv(in_channels, out_channels)
    if type_ == "GraphSAGE":
        return SAGEConv(in_channels, out_channels)
    if type_ != "GAT":
        raise ValueError(f"model.type {type_!r} has no counterpart in the plain run.")
    num_heads = heads.get("num_heads", 8)
    dropout = heads.get("attn_dropout", 0.0)
    if is_output:
        num_heads = heads.get("num_output_heads", num_heads)
        return GATConv(in_channels, out_channels, num_heads, concat=False, dropout=dropout)
    return GATConv(in_channels, out_channels // num_heads, num_heads, dropout=dropout)


def _train_step(model: nn.Module, graph: FullGraph, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    train = graph.splits["train"]
    optimizer.zero_grad()
    output = model(graph.x, graph.adjacency)
    functional.cross_entropy(output[train], graph.y[train]).backward()
    optimizer.step()


@torch.no_grad()
def _evaluate(model: nn.Module, graph: FullGraph, split: str) -> dict[str, float]:
    model.eval()
    ids = graph.splits[split]
    output, y = model(graph.x, graph.adjacency)[ids], graph.y[ids]
    return {
        f"{split}/loss": float(functional.cross_entropy(output, y)),
        f"{split}/accuracy": float((output.argmax(1) == y).double().mean()),
    }


def _dense(column: np.ndarray | SparseColumn) -> Tensor:
    if not isinstance(column, SparseColumn):
        return torch.from_numpy(np.asarray(column)).float()
    return _csr(column.indptr, column.indices, column.values, column.dim).to_dense()


def _csr(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray | None, num_columns: int
) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(indptr),
        torch.from_numpy(indices).long(),
        torch.ones(len(indices)) if values is None else torch.from_numpy(values).float(),
        (len(indptr) - 1, num_columns),
    )
