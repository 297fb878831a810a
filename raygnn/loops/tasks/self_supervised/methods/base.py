"""Base classes of self-supervised methods, with and without two views."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from raygnn.errors import ConfigError
from raygnn.losses import Candidates
from raygnn.models.arguments import Share
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.views import drop_edges, mask_features, view_key

#: One share for both views, or one for each.
Shares = Share | list[Share]


@dataclass(frozen=True)
class Setting:
    """The setting of a method.

    Attributes:
        node_type: type of the seeds.
        channels: width of their embeddings.
        num_features: width of their features, without category codes; 0 without any.
        encoder: with its initial weights.
        build_layer: builds a message passing layer like the encoder's, from embeddings to a width.
    """

    node_type: str
    channels: int
    num_features: int
    encoder: GraphEncoder
    build_layer: Callable[[int], nn.Module]


class Method(nn.Module, ABC):
    """Views of a batch, heads after the encoder, and the loss of their outputs.

    The heads are parameters of the module and train with the encoder.

    Attributes:
        is_joint: the loss of a micro-batch reads rows of all micro-batches of the step.
        extra_hops: additional hops of training batches.
    """

    is_joint: ClassVar[bool] = False
    extra_hops: ClassVar[int] = 0

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.node_type = setting.node_type

    def draw(self, batch: NodeBatch) -> NodeBatch:
        """Adds `views` and `drawn` nodes to a batch. Called in sampler threads."""
        return batch

    def drawn(self, batch: NodeBatch) -> NodeBatch:
        return batch if batch.views else self.draw(batch)

    @abstractmethod
    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        """Inputs of the loss, [num_seeds, channels] each, with gradient.

        `embeddings` are the encoder's, to detect a collapse.
        """

    def offer(self, batch: NodeBatch, rows: dict[str, Tensor]) -> Candidates:
        raise NotImplementedError(f"{type(self).__name__}.offer")

    @abstractmethod
    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        """The summed loss of a batch, and its divisor. `offered`: rows of all batches, if joint."""

    def on_start(self, encoder: GraphEncoder) -> None: ...

    def after_step(self, encoder: GraphEncoder, progress: float) -> None:
        """Called after each step. `progress`: finished share of the run; 0 without a limit."""

    def embed(self, encoder: GraphEncoder, batch: NodeBatch) -> Tensor:
        """[num_seeds, channels], of distinct seeds."""
        rows: Tensor = encoder(batch)[self.node_type]
        return rows


class TwoViews(Method):
    """A method that compares the embeddings of a node in two views of its neighborhood.

    Args:
        drop_edges: share of the edges that a view drops; a list of two has one for each view.
        mask_features: share of the feature columns that are 0 in a view, likewise.
    """

    def __init__(
        self, setting: Setting, drop_edges: Shares = 0.3, mask_features: Shares = 0.3
    ) -> None:
        super().__init__(setting)
        self._drop_edges = _pair("drop_edges", drop_edges)
        self._mask_features = _pair("mask_features", mask_features)

    def draw(self, batch: NodeBatch) -> NodeBatch:
        shares = enumerate(self._drop_edges)
        views = (drop_edges(batch, share, view_key(batch, 2 * i)) for i, share in shares)
        return replace(batch, views=tuple(views))

    def views(self, batch: NodeBatch) -> tuple[NodeBatch, NodeBatch]:
        first, second = (
            mask_features(view, self._mask_features[i], view_key(batch, 2 * i + 1))
            for i, view in enumerate(self.drawn(batch).views)
        )
        return first, second


def _pair(name: str, value: Shares) -> list[Share]:
    shares = value if isinstance(value, list) else [value, value]
    if len(shares) != 2:
        raise ConfigError.invalid(
            f"task.args.method.args.{name}",
            value,
            "there are two views",
            "Set one share for both, or a list of two",
            id="method-views",
        )
    return shares
