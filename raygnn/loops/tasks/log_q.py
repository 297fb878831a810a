"""How often each candidate is expected among the candidates of a step, against its bias."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.losses import Candidates
from raygnn.sampling.negatives import RandomNegatives


class LogQ:
    """The logarithm of the number of times that a node is expected among given candidates.

    With n random draws by the probabilities p, and the targets of m links as candidates, node v is
    expected n p(v) + m q(v) times, q(v) being the share of the training links that lead to v, those
    of an anchor with more than `max_labels_per_anchor` counted less. A hard negative is no draw:
    it is expected once.

    Args:
        negatives: how random ones are drawn; None where none are.
        num_targets: nodes of the target type.
    Source: Sampling-Bias-Corrected Neural Modeling, Yi et al., RecSys 2019, section 3.
    """

    def __init__(
        self,
        negatives: RandomNegatives | None,
        supervision: SupervisionEdges,
        num_targets: int,
        max_labels_per_anchor: int | None,
    ) -> None:
        self._negatives = negatives
        weights = None
        if max_labels_per_anchor is not None:
            num_links = np.diff(supervision.indptr)
            share = np.minimum(1.0, max_labels_per_anchor / np.maximum(num_links, 1))
            weights = np.repeat(share, num_links)
        of_targets = np.bincount(supervision.targets, weights, minlength=num_targets)
        self._of_targets = of_targets / of_targets.sum()

    def __call__(self, candidates: Candidates) -> Tensor:
        """float32 [num_candidates]."""
        assert candidates.owner is not None
        expected = self.expected(candidates, candidates.ids)
        expected[candidates.owner >= 0] = 1.0
        return expected.log().float()

    def expected(self, candidates: Candidates, nodes: Tensor) -> Tensor:
        """float64 [num_nodes], how often nodes are expected among so many draws and targets."""
        assert candidates.in_batch is not None
        assert candidates.owner is not None
        ids = nodes.cpu().numpy()
        num_in_batch = int(candidates.in_batch.sum())
        num_random = len(candidates.ids) - num_in_batch - int((candidates.owner >= 0).sum())
        expected = num_in_batch * self._of_targets[ids]
        if self._negatives is not None:
            expected += num_random * np.exp(self._negatives.log_probability(ids))
        return torch.from_numpy(expected).to(nodes.device)
