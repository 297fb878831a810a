"""A training step of every encoder, beside PyG's own model of the kind on the same batches.

    python benchmarks/encoders.py --scale reference --clock cpu

One thread. PyG's models are trimmed (`num_sampled_nodes_per_hop`, `trim_to_layer`): no layer
computes rows that the next one does not read. Forward pass, backward pass and Adam; batches are
made beforehand. SimpleHGN has no model in PyG.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from harness import CLOCKS, Case, Row, Scale, chosen_scale, interleaved, medians, parser, publish
from rmat_graph import HETERO_EDGES, NODE, RmatGraph
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as pyg
from torch_geometric import typing as pyg_typing
from torch_geometric.nn import models as pyg_models
from torch_geometric.utils import trim_to_layer

from raygnn import models
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.loops.process import keep_freed_memory
from raygnn.sampling import (
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    NodeBatch,
    blocks_of,
)
from raygnn.sampling.blocks import hetero_blocks_of

_NUM_HEADS = 4
_TYPES = ("user", "item")
_STEPS_A_ROUND = 2
#: In place of the harness's reference: the graphs that peers of the field were last compared on.
_ONE_TYPE = {"num_nodes": 500_000, "num_edges": 10_000_000, "fanouts": (10, 10)}
_SEVERAL_TYPES = {
    **{"num_nodes": 250_000, "num_edges": 7_000_000, "num_features": 64, "fanouts": (10, 10)},
    **{"hidden_channels": 128, "batch_size": 512},
}
HOMOGENEOUS = ("GraphSAGE", "GCN", "GIN", "GAT", "GATv2")
HETEROGENEOUS = ("Hetero", "HGT", "RGCN", "SimpleHGN", "LightGCN")
#: Switches of PyG, and the operator of pyg-lib that each uses.
_PYG_OPERATORS = {
    "WITH_SEGMM": "segment_matmul",
    "WITH_GMM": "grouped_matmul",
    "WITH_SOFTMAX": "softmax_csr",
    "WITH_INDEX_SORT": "index_sort",
}
AIMS = {"GAT": ">= 3", "GATv2": ">= 3", "HGT": ">= 3"}


@dataclass(frozen=True)
class Graph:
    """A graph, and batches of its nodes of one type."""

    scale: Scale
    bundle: Bundle
    node_type: str
    batches: list[NodeBatch]

    @classmethod
    def drawn(cls, scale: Scale, work: Path, device: str, *, is_hetero: bool) -> Graph:
        """An R-MAT graph with features and classes."""
        rmat = RmatGraph(
            *(scale.num_nodes, scale.num_edges, scale.num_features, scale.num_classes),
            is_hetero=is_hetero,
        )
        bundle, node_type = rmat.bundle(work), "user" if is_hetero else NODE
        declared = bundle.declared_split(node_type)
        assert declared is not None
        graph = LocalGraphStore(bundle)
        fanouts = {edge_type: list(scale.fanouts) for edge_type in rmat.edge_types}
        loader = NeighborLoader(
            graph,
            LocalFeatureStore(bundle),
            np.flatnonzero(declared == 1),
            node_type,
            sampler=NeighborSampler(graph, fanouts if is_hetero else list(scale.fanouts)),
            columns={"x": "x", "y": "y"},
            batch_size=scale.batch_size,
            split="train",
            seed=0,
            shuffle=True,
            num_threads=0,
            src_degrees=is_hetero,  # for LightGCN
        )
        with loader:
            made = [loader.make(0, number) for number in range(_STEPS_A_ROUND)]
            batches = [loader.ready_for_device(batch).to(device) for batch in made]
        return cls(scale, bundle, node_type, batches)


def use_built_operators() -> None:
    """Lets PyG do without the operators that its pyg-lib was built without.

    PyG looks for the Python functions, which exist in a build of the sampler alone too.
    """
    for switch, operator in _PYG_OPERATORS.items():
        if getattr(pyg_typing, switch) and not hasattr(torch.ops.pyg, operator):
            setattr(pyg_typing, switch, False)


class Step:
    """A model, its optimizer and what it computes of a batch.

    Args:
        scores: of the seeds of a batch.
    """

    def __init__(
        self,
        model: nn.Module,
        scores: Callable[[nn.Module, NodeBatch], Tensor],
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    ) -> None:
        self._model, self._scores = model, scores
        self._optimizer = optimizer(model.parameters())

    def to(self, device: str) -> Step:
        """The step with its model on a device; the optimizer has no state yet."""
        self._model.to(device)
        return self

    def __call__(self, batches: Sequence[NodeBatch]) -> None:
        """Trains on each batch."""
        for batch in batches:
            self._optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(self._scores(self._model, batch), batch.y).backward()
            self._optimizer.step()
        if batches[0].y.is_cuda:
            torch.cuda.synchronize()


def homogeneous_steps(name: str, graph: Graph) -> list[Step]:
    """Steps of our encoder, and of PyG's with the same arguments."""
    scale = graph.scale
    heads = {"GAT": _NUM_HEADS, "GATv2": _NUM_HEADS}.get(name)
    widths = (scale.num_features, scale.num_classes, scale.hidden_channels, len(scale.fanouts))
    args = {} if heads is None else {"num_heads": heads}
    ours = getattr(models, name)(*widths, **args)
    kind = getattr(pyg_models, "GAT" if heads else name)
    more = {} if heads is None else {"heads": heads, "v2": name == "GATv2"}
    theirs = kind(
        scale.num_features, scale.hidden_channels, len(scale.fanouts), scale.num_classes, **more
    )
    return [Step(ours, _of_blocks), Step(theirs, _trimmed)]


def _of_blocks(model: nn.Module, batch: NodeBatch) -> Tensor:
    (nodes,) = batch.nodes.values()
    scores: Tensor = model(nodes.columns["x"], blocks_of(batch))
    return scores


def _trimmed(model: nn.Module, batch: NodeBatch) -> Tensor:
    (nodes,), (edges,) = batch.nodes.values(), batch.edges.values()
    scores: Tensor = model(
        nodes.columns["x"],
        edges.edge_index,
        num_sampled_nodes_per_hop=nodes.num_sampled,
        num_sampled_edges_per_hop=edges.num_sampled,
    )
    return scores[: nodes.num_seeds]


class PygHetero(nn.Module):
    """Projections by node type, PyG's layers over several edge types, a linear head.

    Args:
        layer: makes a layer, which takes rows and edges by type and gives rows by type.
    """

    def __init__(self, layer: Callable[[], nn.Module], scale: Scale) -> None:
        super().__init__()
        width = scale.hidden_channels
        self.inputs = nn.ModuleDict({t: nn.Linear(scale.num_features, width) for t in _TYPES})
        self.layers = nn.ModuleList(layer() for _ in scale.fanouts)
        self.head = nn.Linear(width, scale.num_classes)

    def forward(self, batch: NodeBatch) -> Tensor:
        """Scores of the seeds."""
        x = {t: self.inputs[t](nodes.columns["x"]) for t, nodes in batch.nodes.items()}
        for layer, x_src, edges in _trimmed_layers(self.layers, batch, x):
            x.update({t: rows.relu() for t, rows in layer(x_src, edges).items()})
        scores: Tensor = self.head(x[batch.node_type][: len(batch.y)])
        return scores


class Flattened(nn.Module):
    """A layer of PyG over the edges of all types together, called with rows and edges by type.

    Args:
        takes_types: whether its third argument is the type of each edge.
    """

    def __init__(self, layer: nn.Module, *, takes_types: bool) -> None:
        super().__init__()
        self.layer, self.takes_types = layer, takes_types

    def forward(self, x: dict[str, Tensor], edges: dict[EdgeType, Tensor]) -> dict[str, Tensor]:
        """Rows by type."""
        sizes = [len(rows) for rows in x.values()]
        first = dict(zip(x, accumulate(sizes, initial=0), strict=False))
        starts = [(first[source], first[target]) for source, _, target in HETERO_EDGES]
        index = [
            torch.stack([edges[t][i] + starts[n][i] for i in (0, 1)])
            for n, t in enumerate(HETERO_EDGES)
        ]
        kinds = [e.new_full((e.shape[1],), i) for i, e in enumerate(index)]
        more = [torch.cat(kinds)] if self.takes_types else []
        out = self.layer(torch.cat(list(x.values())), torch.cat(index, dim=1), *more)
        return dict(zip(x, out.split(sizes), strict=True))


class PygLightGCN(nn.Module):
    """Learned rows, `LGConv` over trimmed layers, and the mean of what the layers give."""

    def __init__(self, scale: Scale, num_nodes: dict[str, int]) -> None:
        super().__init__()
        self.rows = nn.ModuleDict(
            {t: nn.Embedding(num_nodes[t], scale.num_classes, sparse=True) for t in _TYPES}
        )
        self.layers = [Flattened(pyg.LGConv(), takes_types=False) for _ in scale.fanouts]

    def forward(self, batch: NodeBatch) -> Tensor:
        """Scores of the seeds."""
        x = {t: self.rows[t](nodes.n_id) for t, nodes in batch.nodes.items()}
        outputs = [x[batch.node_type][: len(batch.y)]]
        for layer, x_src, edges in _trimmed_layers(self.layers, batch, x):
            x.update(layer(x_src, edges))
            outputs.append(x[batch.node_type][: len(batch.y)])
        return torch.stack(outputs).mean(dim=0)


def _trimmed_layers(
    layers: Iterable[nn.Module], batch: NodeBatch, x: dict[str, Tensor]
) -> Iterator[tuple[nn.Module, dict[str, Tensor], dict[EdgeType, Tensor]]]:
    """Each layer with what it reads; the caller writes what it gives into `x`."""
    edges = {t: e.edge_index for t, e in batch.edges.items()}
    num_nodes = {t: nodes.num_sampled for t, nodes in batch.nodes.items()}
    num_edges = {t: e.num_sampled for t, e in batch.edges.items()}
    for i, layer in enumerate(layers):
        trimmed, edges, _ = trim_to_layer(i, num_nodes, num_edges, x, edges)
        x.update(trimmed)
        yield layer, trimmed, edges


def pyg_layer(name: str, width: int) -> nn.Module:
    """PyG's layer of an encoder of several types, as `PygHetero` takes it."""
    if name == "Hetero":
        convs = {edge_type: pyg.SAGEConv(width, width) for edge_type in HETERO_EDGES}
        return pyg.HeteroConv(convs)
    if name == "HGT":
        metadata = (list(_TYPES), list(HETERO_EDGES))
        return pyg.HGTConv(width, width, metadata, heads=_NUM_HEADS)
    conv = pyg.RGCNConv(width, width, len(HETERO_EDGES))
    return Flattened(conv, takes_types=True)


def heterogeneous_steps(name: str, graph: Graph) -> list[Step]:
    """Steps of our encoder and, where PyG has one, of its own."""
    scale = graph.scale
    num_nodes = {t: graph.bundle.num_nodes(t) for t in _TYPES}
    num_layers, width = len(scale.fanouts), scale.hidden_channels
    if name == "LightGCN":
        ours = models.LightGCN(
            {},
            scale.num_classes,
            num_layers=num_layers,
            edge_types=HETERO_EDGES,
            num_nodes=num_nodes,
            sparse_embeddings=True,
        )
        sgd = partial(torch.optim.SGD, lr=0.1)
        return [
            Step(ours, _of_hetero_blocks, sgd),
            Step(PygLightGCN(scale, num_nodes), _whole, sgd),
        ]
    in_channels = dict.fromkeys(_TYPES, scale.num_features)
    heads = {"num_heads": _NUM_HEADS} if name in ("HGT", "SimpleHGN") else {}
    kind = getattr(models, name)
    ours = kind(in_channels, scale.num_classes, width, num_layers, edge_types=HETERO_EDGES, **heads)
    steps = [Step(ours, _of_hetero_blocks)]
    if name != "SimpleHGN":
        steps.append(Step(PygHetero(partial(pyg_layer, name, width), scale), _whole))
    return steps


def _of_hetero_blocks(model: nn.Module, batch: NodeBatch) -> Tensor:
    assert isinstance(model, models.HeteroEncoder)
    scores: Tensor = model(model.inputs_of(batch), hetero_blocks_of(batch))[batch.node_type]
    return scores


def _whole(model: nn.Module, batch: NodeBatch) -> Tensor:
    scores: Tensor = model(batch)
    return scores


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    options = _options(argv)
    scale, work = chosen_scale(options), Path(options.work)
    keep_freed_memory()
    use_built_operators()
    torch.set_num_threads(1)
    is_reference = scale.name == "reference"
    rows: list[Row] = []
    seconds: dict[str, list[float]] = {}
    for names, sizes in ((HOMOGENEOUS, _ONE_TYPE), (HETEROGENEOUS, _SEVERAL_TYPES)):
        chosen = [name for name in names if name in options.only]
        if not chosen:
            continue
        is_hetero = names is HETEROGENEOUS
        size = replace(scale, **(sizes if is_reference else {"fanouts": scale.fanouts[:2]}))
        graph = Graph.drawn(size, work, options.device, is_hetero=is_hetero)
        for name in chosen:
            steps = (heterogeneous_steps if is_hetero else homogeneous_steps)(name, graph)
            cases: dict[str, Case] = {
                who: partial(step.to(options.device), graph.batches)
                for who, step in zip((name, f"{name}, PyG"), steps, strict=False)
            }
            took = interleaved(cases, size.rounds, CLOCKS[options.clock])
            rows += encoder_rows(name, medians(took))
            seconds |= took
    publish("encoders", options, rows, seconds=seconds)


def encoder_rows(name: str, seconds: Mapping[str, float]) -> list[Row]:
    """Our step and PyG's, with the ratio of the two."""
    ours, *theirs = (1e3 * value / _STEPS_A_ROUND for value in seconds.values())
    rows = [Row(name, ours, "ms a step")]
    if theirs:
        ratio, aim = theirs[0] / ours, AIMS.get(name, "")
        rows.append(Row(f"{name}, PyG trimmed", theirs[0], "ms a step", ratio, "ours", aim))
    return rows


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__, in_rounds=True)
    every = (*HOMOGENEOUS, *HETEROGENEOUS)
    options.add_argument("--only", nargs="+", choices=every, default=every)
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
