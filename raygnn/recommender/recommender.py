"""The linear recommender of a link model, blended with its encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from raygnn.recommender.choice import JudgedRows, choose_settings, choose_weights
from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.regression import AnchorRows, LinkBasis, RegressionSettings


class LinearRecommender(nn.Module):
    """Ranks targets by a ridge regression of an anchor's links on themselves, beside an encoder.

    The regression reads the leading directions V of a matrix of links that is divided by powers D
    of the numbers of links: with x the links of an anchor, scores are the products of x D^-1 V
    diag(values / (values + penalty)) and, of targets, V or D V. The targets' recent popularity may
    be added. Nothing is learned by gradients: validation links choose the settings, and the rows
    are computed from the links at hand.

    Args:
        is_ignored: the rows are not used, whatever their weight.
        by_time: anchors are rows of (anchor, time), with the links known at each time.
    Attributes:
        weights: of the encoder's scores, at most 1, and of the regression's.
        filter: float32 [10], `RegressionSettings`.
    Source: Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019, without its
        constraint, since known links are not ranked; normalized as in Shen et al., How Powerful is
        Graph Convolution for Recommendation?, arXiv:2108.07567.
    """

    weights: Tensor
    filter: Tensor

    def __init__(self, *, is_ignored: bool = False, by_time: bool = False) -> None:
        super().__init__()
        self._is_ignored, self.by_time = is_ignored, by_time
        self.register_buffer("weights", torch.tensor([1.0, 0.0]))
        self.register_buffer("filter", torch.tensor(RegressionSettings(), dtype=torch.float32))

    @property
    def is_used(self) -> bool:
        """Whether the regression has a weight."""
        return not self._is_ignored and float(self.weights[1]) > 0

    @property
    def settings(self) -> RegressionSettings:
        return RegressionSettings(*self.filter.tolist())

    def choose(self, judged: Sequence[JudgedRows], histories: Sequence[LinkHistory]) -> None:
        """Sets the settings by the ranking of validation links, with all weight on the regression.

        Args:
            histories: links known to each of `judged`.
        """
        self.filter.copy_(torch.tensor(choose_settings(judged, histories)))
        self.weights.copy_(torch.tensor([0.0, 1.0]))

    def weigh(
        self,
        judged: Sequence[JudgedRows],
        encoded: Sequence[tuple[Tensor, Tensor]],
        rows: Sequence[tuple[AnchorRows, Tensor]],
    ) -> float:
        """Sets the weights by the ranking of validation links; see `choose_weights`.

        Args:
            rows: for each of `judged`, those of `LinkBasis.rows`.
        Returns:
            NDCG@20 of the encoder alone.
        """
        weights, of_encoder = choose_weights(judged, encoded, rows, self.settings)
        self.weights.copy_(torch.tensor(weights))
        return of_encoder

    def rows(
        self, basis: LinkBasis, attributes: np.ndarray | None = None
    ) -> tuple[AnchorRows, Tensor]:
        """Rows of anchors and of targets, [num_targets, rank]; see `LinkBasis.rows`."""
        return basis.rows(self.settings, attributes)

    def blend(
        self, encoded: tuple[Tensor, Tensor], rows: tuple[AnchorRows, Tensor]
    ) -> tuple[BlendedRows, Tensor]:
        """Rows of the encoder, [num_anchors, channels] and [num_targets, channels], with those of
        the regression.
        """
        anchors, targets = encoded
        return BlendedRows(self, anchors, rows[0]), self.join(targets, rows[1])

    def hidden(self, basis: LinkBasis) -> sparse.csr_matrix | None:
        """Known links of the anchors, if their targets are not ranked."""
        return basis.links if self.settings.hides_known else None

    def join(self, encoded: Tensor, rows: Tensor) -> Tensor:
        """Rows of the encoder followed by those of `rows` of the same nodes."""
        of_encoder, of_rows = self.weights.sqrt().to(encoded)
        return torch.cat([of_encoder * encoded, of_rows * rows.to(encoded)], dim=1)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        if (older := state.get(f"{prefix}filter")) is not None:  # with fewer settings
            state[f"{prefix}filter"] = torch.cat([older, self.filter[len(older) :].to(older)])
        super()._load_from_state_dict(state, prefix, *args)


class BlendedRows:
    """Rows of anchors by the encoder and the recommender, joined when they are read."""

    def __init__(self, recommender: LinearRecommender, encoded: Tensor, rows: AnchorRows) -> None:
        self._recommender, self._encoded, self._rows = recommender, encoded, rows

    @property
    def device(self) -> torch.device:
        return self._encoded.device

    def __len__(self) -> int:
        return len(self._encoded)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        return self._recommender.join(self._encoded[index], self._rows[index])
