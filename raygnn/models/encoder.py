"""The base of all encoders: what happens before, between and after the message passing layers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch_geometric.nn import JumpingKnowledge
from torch_geometric.nn.norm import BatchNorm

from raygnn.errors import ConfigError
from raygnn.models.arguments import (
    check_choice,
    check_positive,
    check_probability,
    signature_with_options,
)
from raygnn.models.sparse_input import Features, apply_linear, dropout
from raygnn.sampling.sparse_features import SparseFeatures

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "prelu": nn.PReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
NORMS = ("batch", "layer")


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """The arguments that all encoders take, also those of several node types.

    An encoder with more of them derives its own record.

    Attributes:
        hidden_channels: width between the layers, all heads together.
        num_layers: message passing layers, one for each of `sampling.fanouts`.
        dropout: on the input of each layer after the first; of a `HeteroEncoder`, of each layer.
        input_dropout: on the input features.
        norm: after each layer but the last: "batch", "layer" or None.
        activation: relu, elu, gelu, leaky_relu, prelu, silu or tanh.
        jump: what a last linear layer reads of all layers: "cat", "max" or "lstm" (Jumping
            Knowledge), of an encoder of one node type also "last"; None leaves it out.
        normalize_output: scales each output row to unit L2 norm.
    Raises:
        ConfigError: one is out of range or unknown.
    """

    hidden_channels: int = 256
    num_layers: int = 2
    dropout: float = 0.0
    input_dropout: float = 0.0
    norm: str | None = None
    activation: str = "relu"
    jump: str | None = None
    normalize_output: bool = False

    jumps: ClassVar[tuple[str, ...]] = ("cat", "max", "lstm")

    def __post_init__(self) -> None:
        check_positive(hidden_channels=self.hidden_channels, num_layers=self.num_layers)
        check_probability(dropout=self.dropout, input_dropout=self.input_dropout)
        check_choice("norm", self.norm, NORMS, optional=True)
        check_choice("activation", self.activation, tuple(ACTIVATIONS))
        check_choice("jump", self.jump, self.jumps, optional=True)


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(StackOptions):
    """Those of all encoders, and:

    Attributes:
        residual: adds a linear map of a layer's input to its output, before the norm.
        input_projection: a linear layer to `hidden_channels` comes before the first layer.
    """

    residual: bool = False
    input_projection: bool = False

    jumps: ClassVar[tuple[str, ...]] = ("last", *StackOptions.jumps)


class Encoder(nn.Module, ABC):
    """Stacked message passing layers over per-layer bipartite blocks.

    Layer i reads the rows of its block's sources and writes the rows of its destinations, which are
    the first of the sources. So a batch computes nothing that nobody reads, and a whole graph can
    be encoded layer by layer (`raygnn.models.exact`).

    A layer's input passes dropout; its output passes norm and activation, except the last layer's
    without `jump`. With `jump` all layers are `hidden_channels` wide, and a linear layer gives
    `out_channels` from the last layer's output, or from all of them, combined as in Jumping
    Knowledge Networks (arXiv:1806.03536). `residual`, `input_projection` and `jump: last` are what
    "Classic GNNs are Strong Baselines" (arXiv:2406.08993) tunes.

    A subclass says in `build_layer` what one layer is, and in `Options` which arguments it takes
    beside those of all encoders; it finds them in `self.options`.

    Attributes:
        reads_edge_features, reads_edge_weight, learns_node_rows, keeps_links,
            takes_sparse_input: see `raygnn.models.graph_inputs`.
        overwrites_layer_outputs: whether ReLU may write over what a layer returns, which saves
            memory and time. A subclass says so where no layer's backward pass reads its output.
        row_biases: pattern of the parameters of a layer, by name, that are added to every row of
            its output; see `call_before_norm`.

    Args:
        in_channels: width of the input features.
        out_channels: width of the output.
        hidden_channels, num_layers, ...: fields of the class's `Options`.
    Raises:
        ConfigError: an argument is out of range or unknown.
    """

    Options: ClassVar[type[EncoderOptions]] = EncoderOptions
    reads_edge_features = False
    reads_edge_weight = False
    learns_node_rows = False
    keeps_links = False
    takes_sparse_input = False
    overwrites_layer_outputs = False
    row_biases: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Layers of its own may not take what those of its base class do.
        own = vars(cls)
        if any(name.startswith(("build", "forward")) for name in own):
            cls.takes_sparse_input = own.get("takes_sparse_input", False)
        cls.__signature__ = signature_with_options(cls, Encoder.__init__)  # type: ignore[attr-defined]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 2,
        **options: Any,
    ) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, out_channels=out_channels)
        self.options = self.Options(
            hidden_channels=hidden_channels, num_layers=num_layers, **options
        )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.hidden_channels = hidden_channels
        self.num_layers = num_layers

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
        # A bias of theirs would repeat the layers' own.
        self.residuals = nn.ModuleList(
            nn.Linear(widths[i], widths[i + 1], bias=False)
            for i in range(num_layers)
            if self.options.residual
        )
        self.norms = nn.ModuleList(build_norm(norm, hidden_channels) for _ in range(num_inner))
        # The backward pass of a norm does not read its output either.
        in_place = {"inplace": True} if self.overwrites_layer_outputs or norm else {}
        given = in_place if activation == "relu" else {}
        self.activations = nn.ModuleList(ACTIVATIONS[activation](**given) for _ in range(num_inner))
        self.jump: JumpingKnowledge | None = None
        if jump is not None:
            if jump != "last":
                self.jump = JumpingKnowledge(jump, hidden_channels, num_layers)
            jump_channels = hidden_channels * (num_layers if jump == "cat" else 1)
            self.head = nn.Linear(jump_channels, out_channels)

    @classmethod
    def needs_edge_features(cls, args: Mapping[str, Any]) -> bool:
        """Whether an encoder built with these arguments cannot do without edge features."""
        return cls.reads_edge_features and bool(args.get("edge_dim"))

    @abstractmethod
    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        """One layer: a module called with (x_src, block) that returns [num_dst, out_channels].

        Args:
            is_output: the layer's output is the encoder's.
        """

    def forward_layer(self, i: int, x_src: Features, num_dst: int, block: Block) -> Tensor:
        """Applies layer i, counted from the input.

        Args:
            x_src: [num_src, channels], rows of the block's sources, the destinations' first; sparse
                ones of layer 0 only.
            num_dst: how many rows to return; the block's number of destinations.
        Returns:
            [num_dst, channels of the layer].
        """
        rate = self.options.dropout if i else self.options.input_dropout
        x_src = dropout(x_src, rate, self.training)
        if i == 0 and self.input_projection is not None:
            x_src = apply_linear(self.input_projection, x_src)
            x_src = functional.dropout(x_src, self.options.dropout, self.training)
        norm = self.norms[i] if i < len(self.norms) else None
        x: Tensor = call_before_norm(self.layers[i], norm, self.row_biases, x_src, block)
        if x.shape[0] > num_dst:
            x = x[:num_dst]
        if self.options.residual:
            x = x + apply_linear(self.residuals[i], x_src[:num_dst])
        return x if norm is None else self.activations[i](norm(x))

    def readout(self, layer_outputs: Sequence[Tensor]) -> Tensor:
        """Gives the encoder's output from what each layer gave for the same nodes.

        Args:
            layer_outputs: [num_nodes, channels] of each layer, first to last. Without `jump` only
                the last is read.
        Returns:
            [num_nodes, out_channels].
        """
        x = layer_outputs[-1]
        if self.jump is not None:
            x = self.head(self.jump(list(layer_outputs)))
        elif self.options.jump == "last":
            x = self.head(functional.dropout(x, self.options.dropout, self.training))
        return functional.normalize(x, dim=-1) if self.options.normalize_output else x

    def cast_input(self, x: Features) -> Features:
        """Gives features, which may be stored in another type, in that of the parameters.

        A product with sparse ones is in that type anyway.
        """
        return x if isinstance(x, SparseFeatures) else x.to(next(self.parameters()).dtype)

    def forward(self, x: Features, blocks: Sequence[Block]) -> Tensor:
        """Encodes the seeds of a batch.

        Args:
            x: [num_nodes, in_channels], rows of the batch's nodes, the seeds' first; sparse ones
                where `takes_sparse_input`.
            blocks: one per layer; blocks[0] is the deepest, read by the first layer.
        Returns:
            [num_seeds, out_channels].
        Raises:
            ConfigError: there is not one block per layer.
        """
        if len(blocks) != self.num_layers:
            raise ConfigError(
                f"model.args.num_layers={self.num_layers} is invalid: batches are sampled for "
                f"{len(blocks)} layers. Give sampling.fanouts one number per layer, or set "
                f"model.args.num_layers to {len(blocks)}.",
                id="model-layers-hops",
            )
        num_seeds = blocks[-1].num_dst
        rows = self.cast_input(x)
        outputs = []
        for i, block in enumerate(blocks):
            rows = self.forward_layer(i, rows, block.num_dst, block)
            outputs.append(rows[:num_seeds])
        return self.readout(outputs)


class OverBlocks:
    """Base of PyG's convolutions that are computed over blocks, before PyG's class.

    These have a `forward` of their own, so PyG need not generate a module for `propagate`, which it
    would write to the temporary folder for each class and process.
    """

    def _set_jittable_templates(self, raise_on_error: bool = False) -> None:
        pass


class _NodeLinear(nn.Module):
    """A linear layer on the destinations' own rows."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = nn.Linear(in_channels, out_channels)

    def forward(self, x_src: Features, block: Block) -> Tensor:
        return apply_linear(self.lin, x_src[: block.num_dst])


class MLP(Encoder):
    """A perceptron on the features alone: the baseline that a GNN has to beat."""

    takes_sparse_input = True
    row_biases = r"lin\.bias"

    def build_layer(self, in_channels: int, out_channels: int, *, is_output: bool) -> nn.Module:
        """A linear layer."""
        return _NodeLinear(in_channels, out_channels)

    def forward(self, x: Features, blocks: Sequence[Block]) -> Tensor:
        """Encodes the seeds; reads no other row."""
        return super().forward(x[: blocks[-1].num_dst], blocks)


def call_before_norm(
    layer: nn.Module, norm: nn.Module | None, row_biases: str, *inputs: Any
) -> Any:
    """Calls a layer; what a batch norm then subtracts in training gets no gradient.

    The gradient of such a bias is 0 up to rounding. Adam makes whole steps of it, which differ with
    the number of workers, and which show in evaluation, since the running mean follows them late.

    Args:
        norm: what the layer's output passes next.
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
    """The norm of that name; None gives the identity."""
    if norm == "batch":
        # The last micro-batch of an epoch may hold one seed, of which no variance can be taken:
        # it is normalised by the running statistics.
        return BatchNorm(channels, allow_single_element=True)
    if norm == "layer":
        return nn.LayerNorm(channels)
    return nn.Identity()
