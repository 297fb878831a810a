"""The base of encoders over several node and edge types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch_geometric.nn import JumpingKnowledge
from torch_geometric.nn.module_dict import ModuleDict

from raygnn.data.edge_types import EdgeType, edge_type_name
from raygnn.errors import ConfigError
from raygnn.models.arguments import check_positive, signature_with_options
from raygnn.models.encoder import ACTIVATIONS, StackOptions, build_norm, call_before_norm
from raygnn.models.node_inputs import NodeInputs
from raygnn.models.projected_rows import ProjectedRows, formed
from raygnn.models.sparse_input import Features, dropout
from raygnn.sampling.batch import Batch
from raygnn.sampling.blocks import Block, HeteroBlock

Rows = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class HeteroOptions(StackOptions):
    """Those of all encoders, and:

    Attributes:
        sparse_embeddings: gradients of learned rows are sparse; SparseAdam, Adagrad,
            RowWiseAdagrad and plain SGD take them.
    """

    sparse_embeddings: bool = False


class HeteroEncoder(nn.Module, ABC):
    """Stacked message passing layers over the blocks of a heterogeneous graph.

    Features of each node type are projected to `hidden_channels`; types without features have a
    learned row per node (`EmbeddingTable`). Each layer's input passes dropout, its output norm and
    activation, by node type. Then a linear layer per node type gives `out_channels`, from the last
    layer's output or, with `jump`, from all layers'.

    A node without incoming edges, of some type or of all, keeps what its own row gives. A batch may
    lack node types and edge types; parameters without a part in it get a gradient of 0.

    A subclass says in `build_layer` what one layer is, and in `Options` which arguments it takes
    beside those of all encoders; it finds them in `self.options`.

    Attributes:
        reads_edge_features, reads_edge_weight, learns_node_rows, reads_node_features,
            reads_messages, keeps_links, takes_sparse_input: see `raygnn.models.graph_inputs`.
        row_biases: see `Encoder`.
        composes_inputs: whether a layer takes `ProjectedRows` too, in place of rows of sources.

    Args:
        in_channels: width of the input features, by node type; types without are left out.
        out_channels: width of the output.
        edge_types: those that messages pass along.
        num_nodes: nodes in the whole graph by node type; needed of types without features.
        hidden_channels, num_layers, ...: fields of the class's `Options`.
    Raises:
        ConfigError: an argument is out of range or unknown, or a type has neither features nor a
            number of nodes.
    """

    Options: ClassVar[type[HeteroOptions]] = HeteroOptions
    reads_edge_features = False
    reads_edge_weight = False
    learns_node_rows = True
    reads_node_features = True
    reads_messages = True
    keeps_links = False
    takes_sparse_input = True
    row_biases: ClassVar[str] = ""
    composes_inputs: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "build_layer" in vars(cls):  # layers of its own may not take what those of its base do
            cls.composes_inputs = vars(cls).get("composes_inputs", False)
        cls.__signature__ = signature_with_options(cls, HeteroEncoder.__init__)  # type: ignore[attr-defined]

    def __init__(
        self,
        in_channels: Mapping[str, int],
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_positive(out_channels=out_channels)
        given = self.Options(hidden_channels=hidden_channels, num_layers=num_layers, **options)
        self.options = given
        num_nodes = num_nodes or {}
        if self.reads_messages:
            check_types(edge_types, {*in_channels, *num_nodes})
        self.edge_types: list[EdgeType] = [(s, relation, d) for s, relation, d in edge_types]
        self.out_channels = out_channels
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers

        self.inputs = NodeInputs(
            in_channels, num_nodes, hidden_channels, sparse=given.sparse_embeddings
        )
        self.node_types = self.inputs.node_types
        self.layers = nn.ModuleList(self.build_layer(hidden_channels) for _ in range(num_layers))
        self.norms = nn.ModuleList(
            ModuleDict({name: build_norm(given.norm, hidden_channels) for name in self.node_types})
            for _ in range(num_layers)
        )
        self.activations = nn.ModuleList(ACTIVATIONS[given.activation]() for _ in range(num_layers))
        self.jump: JumpingKnowledge | None = None
        if given.jump is not None:
            self.jump = JumpingKnowledge(given.jump, hidden_channels, num_layers)
        head_channels = hidden_channels * (num_layers if given.jump == "cat" else 1)
        self.heads = ModuleDict(
            {name: nn.Linear(head_channels, out_channels) for name in self.node_types}
        )

    @classmethod
    def needs_edge_features(cls, args: Mapping[str, Any]) -> bool:
        """Whether an encoder built with these arguments cannot do without edge features."""
        return cls.reads_edge_features and bool(args.get("edge_dims"))

    @abstractmethod
    def build_layer(self, channels: int) -> nn.Module:
        """One layer: called with (x_src, block), both of all node types, it returns Rows.

        x_src has [num_src, channels] rows of every node type, none where the batch lacks it; the
        result has [num_dst, channels] rows of every node type.
        """

    @property
    def embedded_types(self) -> frozenset[str]:
        """Node types that are looked up by id."""
        return frozenset(self.inputs.tables.keys())

    @property
    def reads_all_layers(self) -> bool:
        """Whether `readout` reads more than the last layer's rows."""
        return self.jump is not None

    def encode_inputs(self, x: Mapping[str, Features]) -> Rows:
        """Gives the rows that the first layer reads; see `NodeInputs.forward`."""
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

    def forward_layer(
        self,
        i: int,
        x_src: Mapping[str, Tensor | ProjectedRows],
        num_dst: Mapping[str, int],
        block: HeteroBlock,
    ) -> Rows:
        """Applies layer i, counted from the input.

        Args:
            x_src: by node type, [num_src, hidden_channels], the destinations' rows first; types
                without rows may be left out. `ProjectedRows` only where `composes_inputs`.
            num_dst: by node type, how many rows to return; the block's number of destinations.
        Returns:
            By node type, [num_dst, hidden_channels].
        """
        none = next(self.parameters()).new_zeros(0, self.hidden_channels)
        x = {name: self._drop(x_src.get(name, none)) for name in self.node_types}
        norms = self.norms[i]
        assert isinstance(norms, ModuleDict)
        norm = next(iter(norms.values()))  # all are of one kind
        out: Rows = call_before_norm(self.layers[i], norm, self.row_biases, x, block)
        return {
            name: self._activate(i, name, rows[: num_dst.get(name, 0)])
            for name, rows in out.items()
        }

    def readout(self, layer_outputs: Sequence[Mapping[str, Tensor]]) -> Rows:
        """Gives the encoder's output from the rows of the same nodes before and after each layer.

        Args:
            layer_outputs: by node type, [num_nodes, hidden_channels]: what the first layer read,
                then what each layer gave. Only the last is read without `jump`.
        Returns:
            By node type, [num_nodes, out_channels].
        """
        return {
            name: self._head(name, [outputs[name] for outputs in layer_outputs])
            for name in layer_outputs[-1]
        }

    def forward(
        self, x: Mapping[str, Features] | Features, blocks: Sequence[HeteroBlock] | Sequence[Block]
    ) -> Any:
        """Encodes the seeds of a batch.

        Args:
            x: by node type, features (sparse ones too) or dense ids of the batch's nodes, the
                seeds' first; see `NodeInputs.forward`. Rows alone where the graph has one node type
                and one edge type.
            blocks: one per layer; blocks[0] is the deepest, read by the first layer.
        Returns:
            By node type, [num_seeds, out_channels]; a tensor where x is rows alone.
        Raises:
            ConfigError: there is not one block per layer, or x is rows alone and there are several
                types.
        """
        if isinstance(x, Features):
            return self._forward_one_type(x, blocks)
        if len(blocks) != self.num_layers:
            raise ConfigError(
                f"model.args.num_layers={self.num_layers} is invalid: batches are sampled for "
                f"{len(blocks)} layers. Give sampling.fanouts one number per layer, or set "
                f"model.args.num_layers to {len(blocks)}.",
                id="model-layers-hops",
            )
        last = blocks[-1]
        assert isinstance(last, HeteroBlock)
        rows: Mapping[str, Tensor | ProjectedRows] = self._first_inputs(x)
        outputs = [self._first(rows, last.num_dst)]
        for i, block in enumerate(blocks):
            assert isinstance(block, HeteroBlock)
            rows = self.forward_layer(i, rows, block.num_dst, block)
            outputs.append(self._first(rows, last.num_dst))
        return keep_in_graph(self.readout(outputs), self._dense_parameters())

    def inputs_of(self, batch: Batch, feature: str = "x") -> dict[str, Features]:
        """What `forward` takes of a batch: features, or n_id of embedded types."""
        embedded = self.embedded_types
        return {
            name: batch.nodes[name].n_id if name in embedded else batch.nodes[name].columns[feature]
            for name in self.node_types
            if name in batch.nodes and (name in embedded or feature in batch.nodes[name].columns)
        }

    def _forward_one_type(self, x: Features, blocks: Sequence[Any]) -> Tensor:
        if len(self.node_types) != 1 or len(self.edge_types) != 1:
            raise ConfigError(
                f"model.type={type(self).__name__!r} is invalid: it was built for node types "
                f"{self.node_types} and {len(self.edge_types)} edge types, and was given a batch "
                f"of one type. Build it for the types of the graph.",
                id="model-batch-types",
            )
        (node_type,), (edge_type,) = self.node_types, self.edge_types
        wrapped = [
            HeteroBlock(
                blocks={edge_type: block},
                num_src={node_type: block.num_src},
                num_dst={node_type: block.num_dst},
            )
            for block in blocks
        ]
        out: Tensor = self.forward({node_type: x}, wrapped)[node_type]
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

    def _head(self, name: str, rows: list[Tensor]) -> Tensor:
        if rows[-1].shape[0] == 0:  # not len(), which torch.export takes for a constant
            return rows[-1].new_zeros(0, self.out_channels)
        x = rows[-1] if self.jump is None else self.jump(rows[1:])
        x = self.heads[name](x)
        return functional.normalize(x, dim=-1) if self.options.normalize_output else x

    def _dense_parameters(self) -> Iterable[nn.Parameter]:
        # A zero gradient of a table with sparse gradients would be a dense one.
        tables = self.inputs.tables.values()
        others = {id(t.rows.weight) for t in tables if t.sparse or t.share is not None}
        return [p for p in self.parameters() if id(p) not in others]

    @staticmethod
    def _first(rows: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
        return {name: value[: counts.get(name, 0)] for name, value in rows.items()}


def keep_in_graph(
    outputs: dict[str, Tensor], parameters: Iterable[nn.Parameter]
) -> dict[str, Tensor]:
    """Gives the outputs as they are; each parameter has a part in each of them, times 0.

    So a batch without some node or edge type has the same parameters with gradients as any other,
    whichever output the loss is taken of.
    """
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if not torch.is_grad_enabled() or not parameters:
        return outputs
    kept = _KeepInGraph.apply(len(outputs), *outputs.values(), *parameters)
    return dict(zip(outputs, kept, strict=True))


class _KeepInGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, num_outputs: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.parameters = [(p.shape, p.dtype, p.device) for p in tensors[num_outputs:]]
        return tuple(tensor.view_as(tensor) for tensor in tensors[:num_outputs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        zeros = [
            torch.zeros((), dtype=dtype, device=device).expand(shape)
            for shape, dtype, device in ctx.parameters
        ]
        return None, *grads, *zeros


def check_types(edge_types: Sequence[EdgeType], node_types: set[str]) -> None:
    """Checks that there are edge types and that their node types are known.

    Raises:
        ConfigError: they are not.
    """
    if not edge_types:
        raise ConfigError(
            "model.args.edge_types=[] is invalid: there is nothing to pass messages along. Give "
            "the edge types of the graph.",
            id="model-no-edge-types",
        )
    for source, relation, target in edge_types:
        for name in (source, target):
            if name not in node_types:
                raise ConfigError(
                    f"model.args.num_nodes is invalid: node type {name!r} of "
                    f"{edge_type_name((source, relation, target))} has neither features nor a "
                    f"number of nodes. Name features for it in graph.yaml, or give its number of "
                    f"nodes for a table of learned rows.",
                    id="model-node-inputs-missing",
                )


def block_of(block: HeteroBlock, edge_type: EdgeType, like: Tensor) -> Block:
    """The block of an edge type, one without edges where the batch lacks it.

    Args:
        like: on the device where an empty block is made.
    """
    if edge_type in block.blocks:
        return block.blocks[edge_type]
    num_src, num_dst = block.num_src.get(edge_type[0], 0), block.num_dst.get(edge_type[2], 0)
    index = torch.zeros(0, dtype=torch.int64, device=like.device)
    degree = torch.zeros(0, dtype=torch.float32, device=like.device)
    return Block(
        edge_index=index.new_zeros(2, 0),
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=index.new_zeros(num_dst + 1),
        src_degree=degree.new_zeros(num_src),
        dst_degree=degree.new_zeros(num_dst),
    )
