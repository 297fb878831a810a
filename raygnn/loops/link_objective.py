"""The configured link losses as one loss of a batch."""

from __future__ import annotations

import torch

from raygnn.config import LoadedConfig
from raygnn.errors import ConfigError
from raygnn.loops.objective import Objective
from raygnn.losses import LinkLoss

#: Scores of the links; [num_links, channels] of their two ends, and of both after one another; the
#: module; the batch.
LINK_INPUTS = (
    "scores",
    "anchor_embeddings",
    "target_embeddings",
    "embeddings",
    "model",
    "batch",
)


class LinkObjective(Objective):
    """Weighted sum of the terms under `losses`; retrieval with temperature 0.07 by default.

    Every link loss weighs each link 1, so the sum of terms is exact over any cut into batches.
    """

    def __init__(self, loaded: LoadedConfig, device: torch.device) -> None:
        super().__init__(loaded, "retrieval", LINK_INPUTS, device)
        for loss in self.losses:
            if isinstance(loss, LinkLoss) and loss.candidates == "global":
                raise ConfigError(
                    "losses.args.candidates='global' is invalid: this task takes the candidates of "
                    "each micro-batch. Set it to rank, and a larger loader.batch_size."
                )

    @property
    def in_batch(self) -> bool:
        """Whether a term takes the other anchors' targets as candidates."""
        return any(isinstance(loss, LinkLoss) and loss.in_batch for loss in self.losses)
