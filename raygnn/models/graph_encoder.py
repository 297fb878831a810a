"""Any encoder on any batch, and heads for predictions and link scores."""

from __future__ import annotations

import atexit
import inspect
import linecache
import os
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from importlib.util import cache_from_source
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType
from raygnn.errors import ConfigError, DataError
from raygnn.models.decoders import Decoder
from raygnn.models.encoder import BlockEncoder, keep_in_graph
from raygnn.models.feature_layers import CategoryInputs, FeatureInteraction
from raygnn.models.label_propagation import LabelScores
from raygnn.models.relative_time import RelativeTime
from raygnn.models.sparse_input import Features, dense
from raygnn.sampling.batch import Batch, EdgeBatch, NodeBatch, NodeRecord
from raygnn.sampling.blocks import hetero_blocks_of
from raygnn.sampling.sparse_features import SparseFeatures

if TYPE_CHECKING:
    from raygnn.recommender.recommender import LinearRecommender


class GraphEncoder(nn.Module):
    """Hides from a task whether its graph has one node type or many.

    Args:
        encoder: one of raygnn's, computed over per-layer blocks; or any module with PyG's
            `forward(x, edge_index)` or `forward(x_dict, edge_index_dict)`, computed over the
            sampled subgraph.
        widths: input width of each node type, for `forward(x_dict, edge_index_dict)`.
        edge_types: message types, for the same.
        categories: input layers of node types whose features contain category codes.
        interactions: cross layers by node type, on features or on the output of `categories`.
        relative_time: columns of time and counts appended to the features.
    """

    def __init__(
        self,
        encoder: nn.Module,
        categories: Mapping[str, CategoryInputs] = MappingProxyType({}),
        interactions: Mapping[str, FeatureInteraction] = MappingProxyType({}),
        relative_time: RelativeTime | None = None,
        *,
        widths: Mapping[str, int] = MappingProxyType({}),
        edge_types: Sequence[EdgeType] = (),
    ) -> None:
        super().__init__()
        self.relative_time = relative_time
        if isinstance(encoder, BlockEncoder):
            self.module: nn.Module = encoder
        elif takes_dictionaries(type(encoder)):
            self.module = TypedSubgraphModule(encoder, widths, edge_types)
        else:
            self.module = SubgraphModule(encoder)
        self.categories = ModuleDict(dict(categories))
        self.interactions = ModuleDict(dict(interactions))

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Embeds the distinct seeds of a batch.

        Returns:
            By node type, [num_seeds of the type, channels], in the order of the batch's nodes. A
            dictionary of these if a user's model returns several named outputs.
        """
        out = self._encode(batch)
        return {name: _of_seeds(rows, batch.nodes[name].seed_index) for name, rows in out.items()}

    def _encode(self, batch: Batch) -> dict[str, Any]:
        module, rows = self.module, self.rows_without_times(batch)
        rows |= self._with_times(batch, rows)
        if isinstance(module, BlockEncoder):
            embeddings: dict[str, Tensor] = module(rows, hetero_blocks_of(batch))
            # A batch may lack a node type.
            parameters = [*self.categories.parameters(), *self.interactions.parameters()]
            return keep_in_graph(embeddings, parameters)
        encoded: dict[str, Any] = module(batch, rows)
        return encoded

    def rows_without_times(self, batch: Batch) -> dict[str, Features]:
        """The input rows of a batch by node type, without the columns of `relative_time`."""
        module = self.module
        if isinstance(module, BlockEncoder):
            inputs: Mapping[str, Features] = module.inputs_of(batch)
            return {name: self.embed(name, x) for name, x in inputs.items()}
        return {n: self.embed(n, v.columns["x"]) for n, v in batch.nodes.items() if v.columns}

    def _with_times(self, batch: Batch, rows: Mapping[str, Features]) -> dict[str, Tensor]:
        times = self.relative_time
        if times is None:
            return {}
        read = [name for name in times.node_types if name in batch.nodes]
        return {name: times.joined(batch, name, rows) for name in read}

    def embed(self, node_type: str, x: Features) -> Features:
        """The encoder's input from feature rows."""
        for inputs in (self.categories, self.interactions):
            if node_type in inputs:
                x = inputs[node_type](dense(x))
        return x

    def reads_rows_as_they_are(self, node_type: str) -> bool:
        """Whether `embed` returns the rows of a type unchanged."""
        return node_type not in self.categories and node_type not in self.interactions


def _of_seeds(rows: Any, seed_index: Tensor | None) -> Any:
    if seed_index is None:
        return rows
    if isinstance(rows, Mapping):
        return {name: _of_seeds(output, seed_index) for name, output in rows.items()}
    return rows[seed_index]


class NodePredictor(nn.Module):
    """An encoder, with a linear head if its width differs from the number of outputs.

    Args:
        target: node type of the seeds.
        head_channels: (width of the encoder's output, number of outputs); None without a head.
        labels: classes of the training nodes around each node, which the task adds.
    """

    def __init__(
        self,
        encoder: GraphEncoder,
        target: str,
        head_channels: tuple[int, int] | None = None,
        labels: LabelScores | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.labels = labels
        self.head = nn.Identity() if head_channels is None else nn.Linear(*head_channels)
        self._target = target

    def forward(self, batch: NodeBatch, *, with_embeddings: bool = False) -> Any:
        """Predicts the seeds of a batch, which may repeat.

        Returns:
            [num_seeds, num_outputs], or a dictionary of these from a user's model. With
            `with_embeddings`, a pair with the embeddings.
        """
        nodes = batch.nodes[self._target]
        # Seeds may repeat, or be followed by added nodes.
        differ = nodes.num_seeds < len(batch.seed_index) or batch.num_added_edges is not None
        is_indexed = nodes.seed_index is not None
        rows = self.encoder(batch)[self._target]
        embeddings = _of_seeds(rows, batch.seed_index if differ and not is_indexed else None)
        prediction = self.readout(embeddings)
        return (prediction, embeddings) if with_embeddings else prediction

    def readout(self, embedding: Any) -> Any:
        """Predictions [num_nodes, num_outputs] from embeddings [num_nodes, encoder's width]."""
        return self.head(embedding)


class LinkPredictor(nn.Module):
    """Embeds the nodes of a batch of links; the task scores them with `decoder`.

    Args:
        factors: blended with embeddings of the whole graph. A training batch has
            only rows of the encoder.
    """

    def __init__(
        self, encoder: GraphEncoder, decoder: Decoder, factors: LinearRecommender | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.factors = factors

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        rows: dict[str, Tensor] = self.encoder(batch)
        return rows


class FactorizedEdges(nn.Module):
    """Predicts values of edges from biases and factors of both ends, which `factorize` computes.

    They are stored as parameters that do not train, because buffers are averaged over ranks, which
    rounds. `num_nodes`: of sources and of targets.
    """

    def __init__(self, num_nodes: tuple[int, int], channels: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1), requires_grad=False)
        for name, num in zip(_ENDS, num_nodes, strict=True):
            rows = nn.Parameter(torch.zeros(num, 1 + channels), requires_grad=False)
            self.register_parameter(name, rows)

    @torch.no_grad()
    def fill(self, mean: float, rows: Sequence[np.ndarray]) -> None:
        """Sets the mean, and the rows of sources and of targets."""
        self.mean.fill_(mean)
        for name, values in zip(_ENDS, rows, strict=True):
            self.get_parameter(name).copy_(torch.from_numpy(values))

    def forward(self, ids: Tensor) -> Tensor:
        """Predicts edges from dense ids of their ends.

        Args:
            ids: int64 [2, num_edges]. An unknown end is -1 and adds nothing.
        Returns:
            float [num_edges, 1].
        """
        source, target = (self._rows(name, of) for name, of in zip(_ENDS, ids, strict=True))
        products = (source[:, 1:] * target[:, 1:]).sum(dim=1)
        return (self.mean + source[:, 0] + target[:, 0] + products).unsqueeze(1)

    def _rows(self, name: str, ids: Tensor) -> Tensor:
        rows = self.get_parameter(name)
        return rows[ids.clamp(min=0)] * (ids >= 0).unsqueeze(1)


_ENDS = ("sources", "targets")


class EdgeHead(nn.Module):
    """A perceptron with one hidden layer on source, target, their product, and edge features.

    Args:
        in_channels: width of an embedding, and of the hidden layer.
        num_inputs: width of the edge features.
        start: values that the perceptron adds to.
    """

    def __init__(
        self,
        in_channels: int,
        num_inputs: int,
        out_channels: int,
        start: FactorizedEdges | None = None,
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * in_channels + num_inputs, in_channels)
        self.out = nn.Linear(in_channels, out_channels)
        self.start = start
        if start is not None:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, source: Tensor, target: Tensor, inputs: Tensor | None) -> Tensor:
        """Predicts edges, [num_edges, out_channels], from [num_edges, in_channels] of both ends."""
        attr = [] if inputs is None else [inputs.to(source.dtype)]
        rows = torch.cat([source, target, source * target, *attr], dim=1)
        out: Tensor = self.out(self.hidden(rows).relu())
        return out


class EdgePredictor(nn.Module):
    """Embeds the `ends` (source and target types) of a batch's edges, and predicts the edges."""

    def __init__(self, encoder: GraphEncoder, head: EdgeHead, ends: tuple[str, str]) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self._source_type, self._target_type = ends

    def forward(self, batch: EdgeBatch) -> tuple[Tensor, Tensor]:
        """Returns [num_edges, num_outputs], and both ends' rows, [num_edges, 2 * channels]."""
        rows: dict[str, Tensor] = self.encoder(batch)
        source, target = batch.end_index
        ends = rows[self._source_type][source], rows[self._target_type][target]
        return self.of_ends(*ends, batch.inputs, batch.end_id)

    def of_ends(
        self, source: Tensor, target: Tensor, inputs: Tensor | None, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Predictions from the embeddings and the ids (`EdgeBatch.end_id`) of both ends.

        In training the start of the head is left out, because it knows the labels.
        """
        scores = self.head(source, target, inputs)
        if self.head.start is not None and not self.training:
            scores = scores + self.head.start(ids).to(scores.dtype)
        return scores, torch.cat([source, target], dim=1)


#: Names of edge columns in blocks and in PyG's modules.
EDGE_ATTR, EDGE_WEIGHT = "edge_attr", "edge_weight"
# Further inputs of `forward`, by the name of its parameter.
EDGE_INPUTS = (EDGE_WEIGHT, EDGE_ATTR)

#: Ends of the names of modules that PyG generates, and the start of others; see its `template.py`.
_GENERATED = ("_propagate", "_edge_updater")
_GENERATED_SEQUENTIAL = "torch_geometric.nn.sequential_"


_PROCESS = os.getpid()


def remove_generated_modules() -> None:
    """Removes the files of modules that PyG generated for message passing in this process.

    PyG writes one per class to the temporary folder and leaves it there. `inspect` still finds
    their source, which TorchScript reads. A forked process keeps its parent's files.
    """
    if os.getpid() != _PROCESS:
        return
    for name, module in list(sys.modules.items()):
        if name.endswith(_GENERATED) or name.startswith(_GENERATED_SEQUENTIAL):
            path = Path(getattr(module, "__file__", None) or "")
            is_temporary = path.parent == Path(tempfile.gettempdir())
            if is_temporary and path.name.startswith(f"{name}_") and path.exists():
                source = path.read_text()
                linecache.cache[str(path)] = len(source), None, source.splitlines(True), str(path)
                path.unlink()
                Path(cache_from_source(str(path))).unlink(missing_ok=True)


atexit.register(remove_generated_modules)


class SubgraphModule(nn.Module):
    """Applies a module to the union of the sampled neighborhoods, and returns the seeds' rows.

    All layers of the module see one graph. It is called with x and edge_index by position, and with
    `edge_weight` and `edge_attr` by name if its `forward` has these parameters and the batch has
    the columns. x is a sparse torch tensor if the features are sparse and the module's class sets
    `takes_sparse_input`.

    Args:
        module: its `forward` takes (x, edge_index, ...) and returns a row per node of the subgraph,
            or a dictionary of such tensors.
    Raises:
        ConfigError: its `forward` requires other arguments.
    """

    #: Suffix of the names of `forward`'s parameters.
    suffix = ""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        remove_generated_modules()  # workers of Ray end without `atexit`
        parameters = list(inspect.signature(module.forward).parameters.values())
        self._optional = _edge_inputs(module, parameters, self.suffix)

    def forward(self, batch: Batch, rows: Mapping[str, Features]) -> dict[str, Any]:
        """Encodes the seeds of a batch: by node type [num_seeds of the type, channels], or a
        dictionary of these.

        Args:
            rows: by node type, inputs of the module.
        Raises:
            DataError: the module needs an edge column that the graph lacks.
            ConfigError: the module does not return a row per node.
        """
        ((node_type, nodes),), (edges,) = batch.nodes.items(), batch.edges.values()
        inputs = {name: edges.columns[name] for name in self._edge_columns(edges.columns)}
        x = rows[node_type]
        x = x.to_coo() if isinstance(x, SparseFeatures) else x
        out = self.module(x, edges.edge_index, **inputs)
        if isinstance(out, Mapping):
            return {node_type: {name: self._seeds(each, nodes) for name, each in out.items()}}
        return {node_type: self._seeds(out, nodes)}

    def _edge_columns(self, present: Collection[str]) -> list[str]:
        for name, is_needed in self._optional.items():
            if is_needed and name not in present:
                raise DataError(
                    f"model.type={type(self.module).__name__!r} is invalid: its forward() needs "
                    f"{name}, which the graph does not have. Declare it for the edge type in "
                    f"graph.yaml, or give the parameter a default.",
                    id="model-edge-input-missing",
                )
        return [name for name in self._optional if name in present]

    def _seeds(self, out: Any, nodes: NodeRecord) -> Tensor:
        num_nodes = len(nodes.n_id)
        if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != num_nodes:
            got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise ConfigError(
                f"model.type={type(self.module).__name__!r} is invalid: its forward() returned "
                f"{got} for {num_nodes} nodes. Return a tensor with one row per node of "
                f"edge_index's graph, or a dictionary of such tensors.",
                id="model-result",
            )
        return out[: nodes.num_seeds]


class TypedSubgraphModule(SubgraphModule):
    """Applies a module with PyG's `forward(x_dict, edge_index_dict)` to the sampled neighborhoods.

    As from PyG's loaders, it gets an entry for each node type and edge type, empty if the batch has
    none, and `edge_attr_dict` and `edge_weight_dict` if its `forward` has these parameters. It
    returns rows by node type, or the rows of the seeds' type. Lazy parameters (`Linear(-1, 16)`)
    are initialized here. `widths` and `edge_types` are those of `GraphEncoder`.
    """

    suffix = "_dict"

    def __init__(
        self, module: nn.Module, widths: Mapping[str, int], edge_types: Sequence[EdgeType]
    ) -> None:
        super().__init__(module)
        self._widths, self._edge_types = dict(widths), tuple(edge_types)

    def initialize(self, edge_widths: Mapping[str, Mapping[EdgeType, int]]) -> None:
        """Initializes lazy parameters in a forward pass over one node of each type.

        `edge_widths`: by `edge_attr` and `edge_weight`, width by edge type that has it.
        """
        if not any(isinstance(p, UninitializedParameter) for p in self.module.parameters()):
            return
        x = {name: torch.zeros(1, width) for name, width in self._widths.items()}
        edge_index = {edge_type: torch.zeros(2, 1).long() for edge_type in self._edge_types}
        columns = {
            f"{name}_dict": {
                edge_type: torch.ones(1, width) if name == EDGE_ATTR else torch.ones(1)
                for edge_type, width in widths.items()
            }
            for name, widths in edge_widths.items()
            if name in self._optional
        }
        was_training = self.module.training
        with torch.no_grad():
            self.module.eval()(x, edge_index, **columns)
        self.module.train(was_training)

    def forward(self, batch: Batch, rows: Mapping[str, Features]) -> dict[str, Any]:
        like = next(iter(batch.nodes.values())).n_id
        x = {
            name: dense(rows[name]) if name in rows else torch.zeros(0, width, device=like.device)
            for name, width in self._widths.items()
        }
        edge_index = {
            edge_type: batch.edges[edge_type].edge_index
            if edge_type in batch.edges
            else like.new_zeros(2, 0)
            for edge_type in self._edge_types
        }
        columns: dict[str, dict[EdgeType, Tensor]] = {}
        for edge_type, edges in batch.edges.items():
            for name, column in edges.columns.items():
                columns.setdefault(name, {})[edge_type] = column
        inputs = {f"{name}_dict": columns[name] for name in self._edge_columns(columns)}
        out = self.module(x, edge_index, **inputs)
        if isinstance(out, Tensor):
            seeded = [name for name, nodes in batch.nodes.items() if nodes.num_seeds]
            out = dict.fromkeys(seeded[:1], out)
        return {
            name: self._seeds(out[name], batch.nodes[name]) for name in batch.nodes if name in out
        }


def takes_dictionaries(module_class: type) -> bool:
    """Whether the first parameter of a module's `forward` is named like `x_dict`."""
    if issubclass(module_class, BlockEncoder):
        return False
    parameters = list(inspect.signature(module_class.forward).parameters)  # type: ignore[attr-defined]
    return len(parameters) > 1 and parameters[1].endswith("_dict")


def needed_edge_inputs(module_class: type[nn.Module]) -> list[str]:
    parameters = inspect.signature(module_class.forward).parameters
    suffix = "_dict" if takes_dictionaries(module_class) else ""
    defaults = {name: parameters.get(f"{name}{suffix}") for name in EDGE_INPUTS}
    return [name for name, p in defaults.items() if p is not None and p.default is p.empty]


def _edge_inputs(
    module: nn.Module, parameters: list[inspect.Parameter], suffix: str
) -> dict[str, bool]:
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    further = [p for p in parameters if p not in positional[:2]]
    needed = [p for p in further if p.default is p.empty and p.kind not in _VARIADIC]
    known = {f"{name}{suffix}": name for name in EDGE_INPUTS}
    unknown = [p.name for p in needed if p.name not in known]
    if (len(positional) < 2 and not takes_any) or unknown:
        shown = ", ".join(p.name for p in parameters)
        raise ConfigError(
            f"model.type={type(module).__name__!r} is invalid: its forward({shown}) cannot be "
            f"called with (x{suffix}, edge_index{suffix}). Take these two first, then any of "
            f"{', '.join(known)}, and give every other parameter a default.",
            id="model-forward",
        )
    names = {p.name: p in needed for p in further}
    return {known[name]: names[name] for name in known if name in names}


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
