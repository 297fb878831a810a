"""GRACE: finds a node of one view among all nodes of both."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from raygnn.loops.tasks.self_supervised.methods.base import Setting, Share, TwoViews, check_above
from raygnn.losses import Candidates
from raygnn.losses.seed_losses import in_full_precision
from raygnn.models.arguments import check_positive
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.sampling.batch import NodeBatch


class GRACE(TwoViews):
    """Contrast of nodes: both views of a node against all other nodes of the step in both views.

    Memory and time of a step grow with the square of its seeds.

    Source: arXiv:2006.04131, equation 1.

    Args:
        hidden_channels: width of the projector's hidden layer; null is that of the embeddings.
        temperature: what cosines are divided by.
    Raises:
        ConfigError: an argument is out of range.
    """

    is_joint = True

    def __init__(
        self,
        setting: Setting,
        drop_edges: Share = 0.3,
        mask_features: Share = 0.3,
        hidden_channels: int | None = None,
        temperature: float = 0.5,
    ) -> None:
        super().__init__(setting, drop_edges, mask_features)
        width = setting.channels if hidden_channels is None else hidden_channels
        check_positive(hidden_channels=width)
        self.temperature = check_above("temperature", temperature, 0)
        self.projector = nn.Sequential(
            nn.Linear(setting.channels, width), nn.ELU(), nn.Linear(width, setting.channels)
        )

    def rows(self, encoder: GraphEncoder, batch: NodeBatch) -> dict[str, Tensor]:
        """See `Method`."""
        embeddings = [self.embed(encoder, view) for view in self.views(batch)]
        first, second = (
            functional.normalize(in_full_precision(self.projector(rows))) for rows in embeddings
        )
        return {"embeddings": embeddings[0].detach(), "view_1": first, "view_2": second}

    def offer(self, batch: NodeBatch, rows: dict[str, Tensor]) -> Candidates:
        """Both views of the seeds, beside each other."""
        return Candidates(
            rows=torch.cat([rows["view_1"], rows["view_2"]], dim=1), ids=batch.input_id
        )

    def loss(
        self, batch: NodeBatch, rows: dict[str, Tensor], offered: Candidates | None
    ) -> tuple[Tensor, float]:
        """Cross-entropy of the other view, the mean of both directions."""
        assert offered is not None
        own = rows["view_1"], rows["view_2"]
        every = offered.rows.chunk(2, dim=1)
        is_self = batch.input_id.unsqueeze(1) == offered.ids
        with torch.autocast(offered.rows.device.type, enabled=False):
            positive = (own[0] * own[1]).sum(dim=1) / self.temperature
            losses = [
                torch.logsumexp(
                    torch.cat(
                        [
                            one @ every[1 - i].T / self.temperature,
                            (one @ every[i].T / self.temperature).masked_fill(is_self, -torch.inf),
                        ],
                        dim=1,
                    ),
                    dim=1,
                )
                - positive
                for i, one in enumerate(own)
            ]
            return (losses[0] + losses[1]).sum() / 2, float(len(positive))
