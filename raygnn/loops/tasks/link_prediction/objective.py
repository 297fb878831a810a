"""The configured link losses as one loss of a batch."""

from __future__ import annotations

import torch

from raygnn.config import LoadedConfig
from raygnn.errors import ConfigError
from raygnn.loops.tasks.objective import Objective
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
    """Weighted sum of the terms under `losses`.

    Every link loss weighs each link 1, so the sum of terms is exact over any cut into batches.

    Args:
        default: short name of the loss without any.
    """

    def __init__(
        self, loaded: LoadedConfig, device: torch.device, default: str = "retrieval"
    ) -> None:
        super().__init__(loaded, default, LINK_INPUTS, device)
        if len({loss.candidates for loss in self._of_links}) > 1:
            raise ConfigError(
                "losses.args.candidates='global' is invalid: the other losses of links take the "
                "candidates of each micro-batch. Set it to rank, or leave the others out.",
                id="loss-candidates-mixed",
            )

    @property
    def is_joint(self) -> bool:
        """Whether links compete with the candidates of all micro-batches of a step."""
        return any(loss.candidates == "global" for loss in self._of_links)

    @property
    def reads_log_q(self) -> bool:
        """Whether a term corrects for how candidates are drawn."""
        return any(loss.reads_log_q for loss in self._of_links)

    @property
    def in_batch(self) -> bool:
        """Whether a term takes the other anchors' targets as candidates."""
        return any(loss.in_batch for loss in self._of_links)

    @property
    def by_query(self) -> bool:
        """Whether all terms that take scores take those of queries."""
        taking = [term.loss for term in self._terms if "scores" in term.needs]
        return all(isinstance(loss, LinkLoss) and loss.by_query for loss in taking)

    @property
    def _of_links(self) -> list[LinkLoss]:
        return [loss for loss in self.losses if isinstance(loss, LinkLoss)]
