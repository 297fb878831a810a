"""The method that reconstructs hidden features of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from raygnn.config.arguments import Arguments
from raygnn.errors import ConfigError
from raygnn.loops.tasks.self_supervised.methods import Method, Setting
from raygnn.losses import Candidates
from raygnn.losses.seed_losses import in_full_precision
from raygnn.models.encoder import Share
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.sparse_input import dense
from raygnn.sampling.batch import NodeBatch
from raygnn.sampling.blocks import hetero_blocks_of
from raygnn.sampling.views import (
    drawn,
    drop_edges,
    places_drawn,
    view_key,
    with_hop_of_seeds,
)

#: Exponent of the cosine error.
Power = Annotated[float, Field(ge=1)]

# Added to the squared norm of decoded rows: a node whose neighbors are all masked has a row of
# zeros, at which the gradient of a cosine is unbounded.
_LEAST_NORM = 1e-2


class GraphMAEOptions(Arguments):
    """Arguments of `GraphMAE`.

    Attributes:
        mask: share of masked nodes; the loss is on the seeds among them.
        replace: share of the masked nodes with another node's features instead of the token.
        alpha: power of the cosine error.
        drop_edges: share of dropped edges.
    """

    mask: Annotated[float, Field(gt=0, lt=1)] = 0.5
    replace: Share = 0.05
    alpha: Power = 3.0
    drop_edges: Share = 0.0


class GraphMAE(Method):
    """Masked autoencoder: reconstructs the features of masked nodes from their neighborhood.

    Masked nodes have a learned token as features. Their embeddings are set to 0 before a message
    passing layer like the encoder's decodes them from the neighbors' embeddings. Sampled training
    batches have one more hop, with the first fanout.

    Source: arXiv:2205.10803.

    Raises:
        ConfigError: the nodes have no features.
    """

    extra_hops = 1
    Options = GraphMAEOptions

    def __init__(self, setting: Setting, **options: Any) -> None:
        super().__init__(setting, **options)
        if not setting.num_features:
            raise ConfigError(
                "task.args.method is invalid: it reconstructs features, but nodes of type "
                f"{setting.node_type!r} have no numeric ones. Set another one. [method-no-features]"
            )
        categories = setting.encoder.categories
        width = setting.num_features
        if setting.node_type in categories:
            width += categories[setting.node_type].codes.numel()
        self.token = nn.Parameter(torch.zeros(width))
        self.to_decoder = nn.Linear(setting.channels, setting.channels, bias=False)
        self.decoder = setting.build_layer(setting.num_features)

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        batch = self.drawn(batch)
        (view,) = batch.views
        is_masked = self._is_masked(batch)
        masked = self._with_masked(view, is_masked, batch.drawn)
        encoded = encoder(with_hop_of_seeds(masked))
        embeddings = encoded[self.node_type]
        inputs = {name: self.to_decoder(rows) for name, rows in encoded.items()}
        hidden = is_masked[: len(embeddings)].unsqueeze(1)
        inputs[self.node_type] = inputs[self.node_type].masked_fill(hidden, 0)
        decoded = self.decoder(inputs, hetero_blocks_of(view)[-1:])[self.node_type]
        chosen = batch.drawn["masked seeds"]
        return {
            "embeddings": embeddings[chosen].detach(),
            "found": decoded[chosen],
            "features": self.features(encoder, batch)[chosen],
        }

    def features(self, encoder: GraphEncoder, batch: NodeBatch) -> Tensor:
        """[num_nodes, num_features] of all nodes of the seeds' type, without categories."""
        x = dense(batch.nodes[self.node_type].columns["x"])
        if self.node_type not in encoder.categories:
            return x
        numbers: Tensor = encoder.categories[self.node_type].numbers
        return x[:, numbers]

    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        found, features = (in_full_precision(rows[name]) for name in ("found", "features"))
        unit = found / (found.square().sum(dim=1, keepdim=True) + _LEAST_NORM**2).sqrt()
        cosine = (unit * functional.normalize(features)).sum(dim=1)
        error = (1 - cosine).clamp(min=0) ** self.options.alpha
        return error.sum(), float(len(error))

    def draw(self, batch: NodeBatch) -> NodeBatch:
        view = drop_edges(batch, self.options.drop_edges, view_key(batch, 0))
        nodes, seeds = batch.nodes[self.node_type], batch.seed_index
        is_masked = self._is_masked(batch)
        masks = {"masked seeds": seeds[is_masked[seeds]]}
        if self.options.replace:
            swapped = is_masked & drawn(nodes.n_id, self.options.replace, view_key(batch, 2))
            (rows,) = swapped.nonzero(as_tuple=True)
            others = places_drawn(nodes.n_id[rows], len(nodes.n_id), view_key(batch, 3))
            masks |= {"swapped": rows, "swapped for": others}
        return replace(batch, views=(view,), drawn=masks)

    def _is_masked(self, batch: NodeBatch) -> Tensor:
        return drawn(batch.nodes[self.node_type].n_id, self.options.mask, view_key(batch, 1))

    def _with_masked(
        self, batch: NodeBatch, is_masked: Tensor, found: Mapping[str, Tensor]
    ) -> NodeBatch:
        nodes = batch.nodes[self.node_type]
        x = dense(nodes.columns["x"])
        shown = torch.where(is_masked.unsqueeze(1), self.token.to(x.dtype), x)
        if self.options.replace:
            others = x[found["swapped for"]].to(shown.dtype)
            shown = shown.index_copy(0, found["swapped"], others)
        changed = {**batch.nodes}
        changed[self.node_type] = replace(nodes, columns={**nodes.columns, "x": shown})
        return replace(batch, nodes=changed)
