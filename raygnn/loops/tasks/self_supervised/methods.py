"""The interface of self-supervised methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from raygnn.config.arguments import Arguments
from raygnn.losses import Candidates
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling.batch import NodeBatch


@dataclass(frozen=True)
class Setting:
    """The setting of a method.

    Attributes:
        channels: width of the seeds' embeddings.
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

    The heads are parameters of the module and train with the encoder. `Options` are the arguments
    of the method; `self.options` has their values.

    Attributes:
        is_joint: the loss of a micro-batch reads rows of all micro-batches of the step.
        extra_hops: additional hops of training batches.
    """

    is_joint: ClassVar[bool] = False
    extra_hops: ClassVar[int] = 0
    Options: ClassVar[type[Arguments]] = Arguments

    def __init__(self, setting: Setting, **options: Any) -> None:
        super().__init__()
        self.node_type = setting.node_type
        self.options: Any = self.Options.model_validate(options)

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
