"""BGRL: predicts the embeddings of a slowly moving copy of the encoder."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from raygnn.loops.tasks.self_supervised.methods.base import Setting, Share, TwoViews
from raygnn.losses import Candidates
from raygnn.losses.seed_losses import in_full_precision
from raygnn.models.arguments import check_positive, check_probability
from raygnn.models.encoder import build_norm
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.parallel.sharding import own_part
from raygnn.sampling.batch import NodeBatch


class BGRL(TwoViews):
    """Bootstrapped graph latents: the embedding of one view predicts a target of the other view.

    The target is that of a copy of the encoder, which follows it by an exponential moving average.
    Its decay goes from `decay` to 1 along half a cosine over the planned steps. There are no
    negatives. A batch norm and PReLU stand between the encoder and the loss, as after the last
    layer of the published encoder.

    Source: arXiv:2102.06514.

    Args:
        hidden_channels: width of the predictor's hidden layer.
        decay: of the moving average at the first step.
    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        setting: Setting,
        drop_edges: Share = 0.3,
        mask_features: Share = 0.3,
        hidden_channels: int = 512,
        decay: float = 0.99,
    ) -> None:
        super().__init__(setting, drop_edges, mask_features)
        check_positive(hidden_channels=hidden_channels)
        check_probability(decay=decay)
        channels = setting.channels
        self.decay = decay
        self.output = nn.Sequential(build_norm("batch", channels), nn.PReLU())
        self.predictor = nn.Sequential(
            nn.Linear(channels, hidden_channels), nn.PReLU(), nn.Linear(hidden_channels, channels)
        )
        self.target_encoder = copy.deepcopy(setting.encoder).requires_grad_(False)
        self.target_output = copy.deepcopy(self.output).requires_grad_(False)

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        """See `Method`."""
        views = self.views(batch)
        embeddings = [self.embed(encoder, view) for view in views]
        predicted = [self.predictor(self.output(rows)) for rows in embeddings]
        with torch.no_grad():
            targets = [self.target_output(self.embed(self.target_encoder, v)) for v in views]
        return {
            "embeddings": embeddings[0].detach(),
            "predicted_1": predicted[0],
            "predicted_2": predicted[1],
            "target_1": targets[0],
            "target_2": targets[1],
        }

    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        """The cosine distance of both predictions from the other view's target, in [0, 4]."""
        distances = [
            1 - functional.cosine_similarity(in_full_precision(one), in_full_precision(other))
            for one, other in (
                (rows["predicted_1"], rows["target_2"]),
                (rows["predicted_2"], rows["target_1"]),
            )
        ]
        return (distances[0] + distances[1]).sum(), float(len(distances[0]))

    def on_start(self, encoder: GraphEncoder) -> None:
        """The copy begins with the encoder's weights."""
        self._follow(encoder, 0.0)

    def after_step(self, encoder: GraphEncoder, progress: float) -> None:
        """Moves the copy."""
        self._follow(encoder, 1 - (1 - self.decay) * (math.cos(math.pi * progress) + 1) / 2)

    @torch.no_grad()
    def _follow(self, encoder: GraphEncoder, decay: float) -> None:
        for target, online in ((self.target_encoder, encoder), (self.target_output, self.output)):
            for moved, weight in zip(target.parameters(), online.parameters(), strict=True):
                own_part(moved).lerp_(own_part(weight.detach()), 1 - decay)
