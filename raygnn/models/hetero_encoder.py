"""The base of encoders for several node and edge types."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import JumpingKnowledge
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import ConfigError
from raygnn.models.encoder import (
    ACTIVATIONS,
    BlockEncoder,
    StackOptions,
    TypeRows,
    build_norm,
    call_before_norm,
)
from raygnn.models.node_inputs import NodeInputs
from raygnn.models.sparse_input import Features, ProjectedRows, dropout, formed
from raygnn.sampling.batch import Batch
from raygnn.sampling.blocks import Block, HeteroBlock


class HeteroOptions(StackOptions):
    """Options shared by all encoders, plus:

    Attributes:
        sparse_embeddings: gradients of learned rows are sparse, for SparseAdam, Adagrad or
            plain SGD.
        node_embeddings: whether link prediction blends the encoder with a linear recommender
            (`LinearRecommender`); auto does where it suits the task.
    """

    jump: Literal["cat", "max", "lstm"] | None = None
    sparse_embeddings: bool = False
    node_embeddings: Literal["auto"] | bool = "auto"


class HeteroEncoder(BlockEncoder):
    """Stacked message passing layers over the blocks of a heterogeneous graph.

    Features of each node type are projected to `hidden_channels`; types without features have a
    learned row per node (`EmbeddingTable`). By node type, each layer's input passes dropout, and
    its output norm and activation. Then a linear layer per node type maps the last layer's output
    or, with `jump`, all layers' outputs, to `out_channels`.

    A node without in-edges of some or all types keeps the contribution of its own row. A batch may
    lack node types and edge types; unused parameters get a gradient of 0.

    A subclass builds one layer in `build_layer`; see `BlockEncoder`.

    Attributes:
        composes_inputs: layers also take `ProjectedRows` as sources.
    Args:
        in_channels: width of the input features, by node type that has features.
        out_channels: width of the output.
        edge_types: message types.
        num_nodes: nodes in the whole graph by node type; required for types without features.
        hidden_channels, num_layers, ...: fields of the class's `Options`.
    Raises:
        ConfigError: an argument is out of range or unknown, or a type has neither features nor a
            number of nodes.
    """

    Options: ClassVar[type[HeteroOptions]] = HeteroOptions
    options: HeteroOptions
    learns_node_rows = True
    takes_sparse_input = True
    computes_inputs = True
    composes_inputs: ClassVar[bool] = False
    node_types: list[str]
    edge_types: list[EdgeType]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "build_layer" in vars(cls):  # other layers do not inherit support for sparse input
            cls.composes_inputs = vars(cls).get("composes_inputs", False)

    def __init__(
        self,
        in_channels: Mapping[str, int],
        out_channels: PositiveInt,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(out_channels, hidden_channels, num_layers, options)
        num_nodes = num_nodes or {}
        if self.reads_messages:
            check_types(edge_types, {*in_channels, *num_nodes})
        self.edge_types = [(s, relation, d) for s, relation, d in edge_types]
        norm, jump, activation = self.options.norm, self.options.jump, self.options.activation
        self.inputs = NodeInputs(
            in_channels, num_nodes, hidden_channels, sparse=self.options.sparse_embeddings
        )
        self.node_types = self.inputs.node_types
        self.layers = nn.ModuleList(self.build_layer(hidden_channels) for _ in range(num_layers))
        self.norms = nn.ModuleList(
            ModuleDict({name: build_norm(norm, hidden_channels) for name in self.node_types})
            for _ in range(num_layers)
        )
        self.activations = nn.ModuleList(ACTIVATIONS[activation]() for _ in range(num_layers))
        if jump is not None:
            self.jump = JumpingKnowledge(jump, hidden_channels, num_layers)
        head_channels = hidden_channels * (num_layers if jump == "cat" else 1)
        self.heads = ModuleDict(
            {name: nn.Linear(head_channels, out_channels) for name in self.node_types}
        )

    @abstractmethod
    def build_layer(self, channels: int) -> nn.Module:
        """Builds a layer, called with (x_src, block) of all node types, that returns TypeRows.

        x_src has [num_src, channels] rows of every node type, possibly empty. The result has
        [num_dst, channels] rows of every node type.
        """

    @property
    def embedded_types(self) -> frozenset[str]:
        return frozenset(self.inputs.tables.keys())

    def inputs_of(self, batch: Batch, feature: str = "x") -> dict[str, Features]:
        """Arguments of `forward` for a batch: features, or n_id of embedded types."""
        embedded = self.embedded_types
        return {
            name: batch.nodes[name].n_id if name in embedded else batch.nodes[name].columns[feature]
            for name in self.node_types
            if name in batch.nodes and (name in embedded or feature in batch.nodes[name].columns)
        }

    def encode_inputs(self, x: Mapping[str, Features]) -> TypeRows:
        return self.inputs(self._drop_features(x))

    def _first_inputs(self, x: Mapping[str, Features]) -> Mapping[str, Tensor | ProjectedRows]:
        if self.composes_inputs:
            return self.inputs.unformed(self._drop_features(x))
        return self.encode_inputs(x)

    def _drop_features(self, x: Mapping[str, Features]) -> dict[str, Features]:
        return {
            name: dropout(rows, self.options.input_dropout, self.training)
            if rows.dtype.is_floating_point
            else rows
            for name, rows in x.items()
        }

    def forward_layer(self, i: int, x_src: Mapping[str, Any], block: HeteroBlock) -> TypeRows:
        """Types without rows may be missing. `ProjectedRows` need `composes_inputs`."""
        none = next(self.parameters()).new_zeros(0, self.hidden_channels)
        x = {name: self._drop(x_src.get(name, none)) for name in self.node_types}
        norms = self.norms[i]
        assert isinstance(norms, ModuleDict)
        norm = next(iter(norms.values()))  # all are of one kind
        out: TypeRows = call_before_norm(self.layers[i], norm, self.row_biases, x, block)
        return {
            name: self._activate(i, name, rows[: block.num_dst.get(name, 0)])
            for name, rows in out.items()
        }

    def readout_of(self, name: str, rows: list[Tensor]) -> Tensor:
        if not len(rows[-1]):
            return rows[-1].new_zeros(0, self.out_channels)
        out: Tensor = self.heads[name](rows[-1] if self.jump is None else self.jump(rows[1:]))
        return out

    def _drop(self, rows: Tensor | ProjectedRows) -> Tensor | ProjectedRows:
        rate = self.options.dropout
        if not self.training or rate == 0:
            return rows
        return functional.dropout(formed(rows), rate)

    def _activate(self, i: int, name: str, rows: Tensor) -> Tensor:
        if not len(rows):  # nothing that a batch norm could take statistics of
            return rows
        norms = self.norms[i]
        assert isinstance(norms, ModuleDict)
        out: Tensor = self.activations[i](norms[name](rows))
        return out

    def _kept_parameters(self) -> Iterable[nn.Parameter]:
        # A zero gradient of a table with sparse gradients would be a dense one.
        tables = self.inputs.tables.values()
        others = {id(t.rows.weight) for t in tables if t.sparse or t.share is not None}
        return [p for p in self.parameters() if id(p) not in others]


def check_types(edge_types: Sequence[EdgeType], node_types: set[str]) -> None:
    """Raises a ConfigError unless there are edge types and their node types are known."""
    if not edge_types:
        raise ConfigError(
            "model.args.edge_types=[] is invalid: there is nothing to pass messages along. Give "
            "the edge types of the graph. [model-no-edge-types]"
        )
    for source, relation, target in edge_types:
        for name in (source, target):
            if name not in node_types:
                raise ConfigError(
                    f"model.args.num_nodes is invalid: node type {name!r} of "
                    f"{edge_type_name((source, relation, target))} has neither features nor a "
                    "number of nodes. Give one of both. [model-node-inputs-missing]"
                )


def block_of(block: HeteroBlock, edge_type: EdgeType, like: Tensor) -> Block:
    if edge_type in block.blocks:
        return block.blocks[edge_type]
    num_src, num_dst = block.num_src.get(edge_type[0], 0), block.num_dst.get(edge_type[2], 0)
    index = torch.zeros(0, dtype=torch.int64, device=like.device)
    degree = index.float()
    return Block(
        edge_index=index.new_zeros(2, 0),
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=index.new_zeros(num_dst + 1),
        dst_degree=degree.new_zeros(num_dst),
        src_in_degree=degree.new_zeros(num_src) if edge_type[0] == edge_type[2] else None,
        src_degree=degree.new_zeros(num_src),
    )
