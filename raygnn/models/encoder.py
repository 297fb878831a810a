"""The base of all encoders: everything before, between and after the message passing layers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import functional
from torch_geometric.nn import JumpingKnowledge
from torch_geometric.nn.norm import BatchNorm

from raygnn.config.arguments import Arguments, validated_arguments
from raygnn.data.edge_types import EdgeType
from raygnn.errors import ConfigError, Problem
from raygnn.models.sparse_input import Features, apply_linear, dropout
from raygnn.sampling.batch import Batch
from raygnn.sampling.blocks import Block, HeteroBlock
from raygnn.sampling.sparse_features import SparseFeatures

#: A probability to leave something out.
Share = Annotated[float, Field(ge=0, lt=1)]


def broken_heads(options: Any) -> Iterator[Problem]:
    width, num_heads = options.hidden_channels, options.num_heads
    if width % num_heads:
        lower, upper = width // num_heads * num_heads, -(-width // num_heads) * num_heads
        rule = f"the width of all heads must be a multiple of model.args.num_heads={num_heads}"
        remedy = f"Set {lower} or {upper}" if lower else f"Set {upper}"
        yield Problem(("hidden_channels",), rule, remedy, id="model-heads")


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
Activation = Literal["relu", "elu", "gelu", "leaky_relu", "prelu", "silu", "tanh"]


class StackOptions(Arguments):
    """Arguments of all encoders, also those of several node types.

    Encoders with more arguments derive their own class.

    Attributes:
        out_channels: width of the output.
        hidden_channels: width between the layers, all heads together.
        num_layers: message passing layers, one for each of `sampling.fanouts`.
        dropout: on the input of each layer after the first; in a `HeteroEncoder`, of each layer.
        input_dropout: on the input features.
        norm: after each layer but the last: "batch", "layer" or None.
        activation: relu, elu, gelu, leaky_relu, prelu, silu or tanh.
        jump: how a last linear layer combines all layers: "cat", "max" or "lstm" (Jumping
            Knowledge). Encoders of one node type also have "last". None omits the layer.
        normalize_output: scales each output row to unit L2 norm.
    """

    out_channels: PositiveInt
    hidden_channels: PositiveInt = 256
    num_layers: PositiveInt = 2
    dropout: Share = 0.0
    input_dropout: Share = 0.0
    norm: Literal["batch", "layer"] | None = None
    activation: Activation = "relu"
    jump: Literal["last", "cat", "max", "lstm"] | None = None
    normalize_output: bool = False


class EncoderOptions(StackOptions):
    """Options shared by all encoders, plus:

    Attributes:
        residual: adds a linear map of a layer's input to its output, before the norm.
        input_projection: a linear layer to `hidden_channels` before the first layer.
    """

    residual: bool = False
    input_projection: bool = False


TypeRows = dict[str, Tensor]
#: Names of the node and edge type if an encoder receives tensors.
_ONLY_TYPES = "node", ("node", "to", "node")


class BlockEncoder(nn.Module, ABC):
    """Base of all encoders: stacked message passing layers over the blocks of a batch.

    Layer i reads its block's sources and writes its destinations, which are the first sources of
    their type. So a batch computes only rows that are read, and a whole graph can be encoded layer
    by layer (`raygnn.models.exact`). Rows are by node type. An `Encoder` has one type, a
    `HeteroEncoder` any number.

    A subclass builds its layers and implements `forward_layer` and `readout_of`. `Options` are its
    arguments besides those of all encoders; `self.options` has their values.

    Attributes:
        reads_edge_features, reads_edge_weight, reads_src_degree, learns_node_rows,
            reads_node_features, reads_messages, keeps_links, takes_sparse_input: see
            `raygnn.models.graph_inputs`.
        row_biases: pattern of a layer's parameters, by name, that are added to every output row;
            see `call_before_norm`.
        computes_inputs: the first layer's input is computed from features or ids, and is the first
            of the outputs passed to `readout`.
        node_types, edge_types: the types it is built for; None for the only ones of any graph.
    """

    Options: ClassVar[type[StackOptions]] = StackOptions
    options: StackOptions
    reads_edge_features = False
    reads_edge_weight = False
    reads_src_degree = False
    learns_node_rows = False
    reads_node_features = True
    reads_messages = True
    keeps_links = False
    takes_sparse_input = False
    row_biases: ClassVar[str] = ""
    computes_inputs: ClassVar[bool] = False
    node_types: list[str] | None = None
    edge_types: list[EdgeType] | None = None

    def __init__(
        self, out_channels: int, hidden_channels: int, num_layers: int, options: Mapping[str, Any]
    ) -> None:
        super().__init__()
        widths = {"out_channels": out_channels, "hidden_channels": hidden_channels}
        arguments = {**options, **widths, "num_layers": num_layers}
        self.options = validated_arguments(
            self.Options, arguments, type(self).__name__, "model.args", "model"
        )
        self.out_channels = out_channels
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers
        self.jump: JumpingKnowledge | None = None

    @classmethod
    def needs_edge_features(cls, args: Mapping[str, Any]) -> bool:
        """Whether an encoder with these arguments requires edge features."""
        return cls.reads_edge_features and bool(args.get("edge_dim") or args.get("edge_dims"))

    @property
    def embedded_types(self) -> frozenset[str]:
        return frozenset()

    @property
    def reads_all_layers(self) -> bool:
        return self.jump is not None

    @abstractmethod
    def inputs_of(self, batch: Batch, feature: str = "x") -> dict[str, Features]: ...

    @abstractmethod
    def encode_inputs(self, x: Mapping[str, Features]) -> Mapping[str, Features]:
        """Gives the rows that the first layer reads, by node type; `x` is as in `forward`."""

    @abstractmethod
    def forward_layer(self, i: int, x_src: Mapping[str, Any], block: HeteroBlock) -> TypeRows:
        """Applies layer i, counted from the input. Returns [num_dst, channels] by node type.

        `x_src`: by node type, [num_src, channels], sources of the block, the destinations first.
        """

    @abstractmethod
    def readout_of(self, name: str, rows: list[Tensor]) -> Tensor:
        """`readout` of one node type, before rows are scaled to unit norm."""

    def readout(self, layer_outputs: Sequence[Mapping[str, Tensor]]) -> TypeRows:
        """Computes the output, [num_nodes, out_channels] by node type, from the layers' outputs.

        Args:
            layer_outputs: [num_nodes, channels] by node type for each layer, after the input of the
                first layer if `computes_inputs`. Without `reads_all_layers`, only the last is read.
        """
        out = {
            name: self.readout_of(name, [rows[name] for rows in layer_outputs])
            for name in layer_outputs[-1]
        }
        if not self.options.normalize_output:
            return out
        return {name: functional.normalize(x, dim=-1) for name, x in out.items()}

    def forward(
        self, x: Mapping[str, Features] | Features, blocks: Sequence[HeteroBlock] | Sequence[Block]
    ) -> Any:
        """Encodes the seeds of a batch.

        Args:
            x: by node type, [num_nodes, in_channels] features of the batch's nodes, the seeds first
                (sparse if `takes_sparse_input`), or dense ids of `embedded_types`. A tensor, with a
                `Block` per layer, for a graph of one node and edge type.
            blocks: one per layer; blocks[0] is the deepest, read by the first layer.
        Returns:
            By node type, [num_seeds, out_channels]; a tensor if x is one.
        Raises:
            ConfigError: the number of blocks is wrong, or x is a tensor and there are several
                types.
        """
        if isinstance(x, Features):
            return self._forward_one_type(x, blocks)
        if len(blocks) != self.num_layers:
            raise ConfigError(
                f"model.args.num_layers={self.num_layers} is invalid: batches are sampled for "
                f"{len(blocks)} layers. Give sampling.fanouts one number per layer, or set "
                f"model.args.num_layers to {len(blocks)}. [model-layers-hops]"
            )
        num_seeds: Any = blocks[-1].num_dst
        rows = self._first_inputs(x)
        outputs = [_first(rows, num_seeds)] if self.computes_inputs else []
        for i, block in enumerate(blocks):
            assert isinstance(block, HeteroBlock)
            rows = self.forward_layer(i, rows, block)
            outputs.append(_first(rows, num_seeds))
        return keep_in_graph(self.readout(outputs), self._kept_parameters())

    def _first_inputs(self, x: Mapping[str, Features]) -> Mapping[str, Any]:
        return self.encode_inputs(x)

    def _kept_parameters(self) -> Iterable[nn.Parameter]:
        return ()

    def _forward_one_type(self, x: Features, blocks: Sequence[Any]) -> Tensor:
        node_type, edge_type = _ONLY_TYPES
        if self.node_types is not None and self.edge_types is not None:
            if len(self.node_types) != 1 or len(self.edge_types) != 1:
                raise ConfigError(
                    f"model.type={type(self).__name__!r} is invalid: it was built for node types "
                    f"{self.node_types} and {len(self.edge_types)} edge types, and was given a "
                    "batch of one type. Build it for the types of the graph. [model-batch-types]"
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


class Encoder(BlockEncoder):
    """Stacked message passing layers over a graph of one node type and one edge type.

    A layer's input passes dropout; its output passes norm and activation, except in the last layer
    without `jump`. With `jump`, all layers are `hidden_channels` wide, and a linear layer maps the
    last layer's output, or all combined as in Jumping Knowledge Networks (arXiv:1806.03536), to
    `out_channels`. `residual`, `input_projection` and `jump: last` are tuned in "Classic GNNs are
    Strong Baselines" (arXiv:2406.08993).

    A subclass builds one layer in `build_layer`; see `BlockEncoder`.

    Attributes:
        overwrites_layer_outputs: ReLU may overwrite a layer's output, which saves memory and time.
            Set it if no layer's backward pass reads its output.
    Args:
        in_channels: width of the input features.
        out_channels: width of the output.
        hidden_channels, num_layers, ...: fields of the class's `Options`.
    Raises:
        ConfigError: an argument is out of range or unknown.
    """

    Options: ClassVar[type[EncoderOptions]] = EncoderOptions
    options: EncoderOptions
    overwrites_layer_outputs = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A subclass with other layers does not inherit support for sparse input.
        attributes = vars(cls)
        if any(name.startswith(("build", "forward")) for name in attributes):
            cls.takes_sparse_input = attributes.get("takes_sparse_input", False)

    def __init__(
        self,
        in_channels: PositiveInt,
        out_channels: PositiveInt,
        hidden_channels: int = 256,
        num_layers: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(out_channels, hidden_channels, num_layers, options)
        self.in_channels = in_channels

        norm, jump, activation = self.options.norm, self.options.jump, self.options.activation
        num_inner = num_layers if jump else num_layers - 1
        self.input_projection: nn.Module | None = None
        if self.options.input_projection:
            self.input_projection = nn.Linear(in_channels, hidden_channels)
            in_channels = hidden_channels
        widths = [in_channels, *[hidden_channels] * num_inner]
        if jump is None:
            widths.append(out_channels)
        self.layers = nn.ModuleList(
            self.build_layer(widths[i], widths[i + 1], is_output=i == num_inner)
            for i in range(num_layers)
        )
        # No bias, since the layers have one.
        self.residuals = nn.ModuleList(
            nn.Linear(widths[i], widths[i + 1], bias=False)
            for i in range(num_layers)
            if self.options.residual
        )
        self.norms = nn.ModuleList(build_norm(norm, hidden_channels) for _ in range(num_inner))
        # The backward pass of a norm does not read its output either.
        in_place = {"inplace": True} if self.overwrites_layer_outputs or norm else {}
        args = in_place if activation == "relu" else {}
        self.activations = nn.ModuleList(ACTIVATIONS[activation](**args) for _ in range(num_inner))
        if jump is not None:
            if jump != "last":
                self.jump = JumpingKnowledge(jump, hidden_channels, num_layers)
            jump_channels = hidden_channels * (num_layers if jump == "cat" else 1)
            self.head = nn.Linear(jump_channels, out_channels)

    @abstractmethod
    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        """Builds a layer: a module called with (x_src, block) that returns [num_dst, out_channels].

        `is_output`: the layer's output is the encoder's.
        """

    def inputs_of(self, batch: Batch, feature: str = "x") -> dict[str, Features]:
        return {name: nodes.columns[feature] for name, nodes in batch.nodes.items()}

    def encode_inputs(self, x: Mapping[str, Features]) -> dict[str, Features]:
        """Casts features to the parameters' dtype. Products with sparse ones already have it."""
        dtype = next(self.parameters()).dtype
        return {
            name: rows if isinstance(rows, SparseFeatures) else rows.to(dtype)
            for name, rows in x.items()
        }

    def forward_layer(self, i: int, x_src: Mapping[str, Any], block: HeteroBlock) -> TypeRows:
        ((name, rows),), (edges,) = x_src.items(), block.blocks.values()
        rate = self.options.dropout if i else self.options.input_dropout
        rows = dropout(rows, rate, self.training)
        if i == 0 and self.input_projection is not None:
            rows = apply_linear(self.input_projection, rows)
            rows = functional.dropout(rows, self.options.dropout, self.training)
        norm = self.norms[i] if i < len(self.norms) else None
        x: Tensor = call_before_norm(self.layers[i], norm, self.row_biases, rows, edges)
        if x.shape[0] > edges.num_dst:
            x = x[: edges.num_dst]
        if self.options.residual:
            x = x + apply_linear(self.residuals[i], rows[: edges.num_dst])
        return {name: x if norm is None else self.activations[i](norm(x))}

    def readout_of(self, name: str, rows: list[Tensor]) -> Tensor:
        x = rows[-1]
        if self.jump is not None:
            x = self.head(self.jump(rows))
        elif self.options.jump == "last":
            x = self.head(functional.dropout(x, self.options.dropout, self.training))
        return x


def _first(rows: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    return {name: value[: counts.get(name, 0)] for name, value in rows.items()}


class OverBlocks:
    """Base of PyG's convolutions over blocks, listed before PyG's class.

    They have their own `forward`, so PyG need not generate a module for `propagate`, which it would
    write to the temporary folder for each class and process.
    """

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        pass


class _NodeLinear(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x_src: Features, block: Block) -> Tensor:
        return apply_linear(self.lin, x_src[: block.num_dst])


class MLP(Encoder):
    """A perceptron on the features alone: the baseline for a GNN."""

    takes_sparse_input = True
    row_biases = r"lin\.bias"

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        return _NodeLinear(in_channels, out_channels)

    def forward(self, x: Any, blocks: Any) -> Any:
        if isinstance(x, Mapping):
            x = _first(x, blocks[-1].num_dst)
        return super().forward(x, blocks)


def call_before_norm(
    layer: nn.Module, norm: nn.Module | None, row_biases: str, *inputs: Any
) -> Any:
    """Calls a layer. Biases that a batch norm subtracts in training get no gradient.

    The gradient of such a bias is 0 up to rounding, but Adam makes full steps of it. These differ
    with the number of workers, and show in evaluation because the running mean lags.

    Args:
        norm: the norm that follows.
        row_biases: pattern of the layer's parameters, by name, that are added to every row.
    """
    if not (isinstance(norm, BatchNorm) and norm.training):
        return layer(*inputs)
    held = {
        name: parameter.detach()
        for name, parameter in layer.named_parameters()
        if re.fullmatch(row_biases, name)
    }
    return functional_call(layer, held, inputs)


def build_norm(norm: str | None, channels: int) -> nn.Module:
    if norm == "batch":
        # The last micro-batch of an epoch may contain one seed, which has no variance:
        # it is normalised by the running statistics.
        return BatchNorm(channels, allow_single_element=True)
    if norm == "layer":
        return nn.LayerNorm(channels)
    return nn.Identity()


def keep_in_graph(
    outputs: dict[str, Tensor], parameters: Iterable[nn.Parameter]
) -> dict[str, Tensor]:
    """Returns the outputs unchanged, with each parameter added to each of them times 0.

    So a batch without some node or edge type has gradients for all parameters, whichever output the
    loss reads.
    """
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if not torch.is_grad_enabled() or not parameters:
        return outputs
    attached = _KeepInGraph.apply(len(outputs), *outputs.values(), *parameters)
    return dict(zip(outputs, attached, strict=True))


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
