"""The configured link losses as one loss of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from raygnn.config import Component, LoadedConfig, build
from raygnn.config.training_section import LossTerm
from raygnn.errors import ConfigError
from raygnn.losses import LinkLoss, LinkScores


class LinkObjective:
    """Weighted sum of the terms under `losses`; retrieval with temperature 0.07 by default.

    Every link loss weighs each link 1, so the sum of terms is exact over any cut into batches.
    """

    def __init__(self, loaded: LoadedConfig, device: torch.device) -> None:
        terms = loaded.config.losses or [LossTerm(type="retrieval")]
        self._terms: list[tuple[float, LinkLoss]] = []
        for term in terms:
            loss = build(
                Component(type=term.type, args=term.args), "loss", loaded.allow_modules
            ).to(device)
            if not isinstance(loss, LinkLoss):
                raise ConfigError(
                    f"losses.type={term.type!r} is invalid: it is no loss of links. Set retrieval, "
                    "softmax, margin, bpr or link_binary_cross_entropy."
                )
            if loss.candidates == "global":
                raise ConfigError(
                    "losses.args.candidates='global' is invalid: this task takes the candidates of "
                    "each micro-batch. Set it to rank, and a larger loader.batch_size."
                )
            self._terms.append((term.weight, loss))

    @property
    def in_batch(self) -> bool:
        """Whether a term takes the other anchors' targets as candidates."""
        return any(loss.in_batch for _, loss in self._terms)

    def __call__(self, scores: LinkScores) -> tuple[Tensor, float]:
        """The loss summed over the links, and their number."""
        sums = [weight * loss(scores)[0] for weight, loss in self._terms]
        return sum(sums[1:], sums[0]), float(len(scores.positive))
