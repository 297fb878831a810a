"""Rows of anchors and targets from the links alone, in closed form, beside those of an encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import linalg, sparse
from scipy.sparse.linalg import svds
from torch import Tensor, nn

_RANK = 512
#: Nodes of the smaller side up to which the matrix of links is decomposed as a dense one.
_MOST_DENSE = 3_000
#: Links that each anchor has besides its own, spread over the targets by their popularity. They
#: rank the targets for an anchor without links.
_PRIOR = 1.0


@dataclass(frozen=True)
class LinkBasis:
    """Leading directions of the links: X^T X = Q diag(values) Q^T for the matrix X of links.

    Attributes:
        values: float64 [rank].
        rest: mean of the values that are left out.
        targets: float64 [num_targets, rank], Q.
        anchors: float32 [num_anchors, rank], X Q plus
        prior: float64 [rank], the row of an anchor without links.
    """

    values: np.ndarray
    rest: float
    targets: np.ndarray
    anchors: np.ndarray
    prior: np.ndarray

    @classmethod
    def of(cls, links: sparse.csr_matrix) -> LinkBasis:
        """Decomposes a matrix of links, [num_anchors, num_targets]. Repeated links count once."""
        links = sparse.csr_matrix(links, dtype=np.float64, copy=True)
        links.sum_duplicates()
        links.data[:] = 1
        num_targets, smaller = links.shape[1], min(links.shape)
        rank = min(_RANK, smaller)
        if smaller > _MOST_DENSE:
            _, roots, rows = svds(links, rank, v0=np.ones(smaller), return_singular_vectors="vh")
            values, targets = np.square(roots), rows.T
        else:
            of_targets = num_targets == smaller
            gram = links.T @ links if of_targets else links @ links.T
            index = (smaller - rank, smaller - 1)
            values, targets = linalg.eigh(gram.toarray(), subset_by_index=index)
            is_used = values > 1e-9 * max(values[-1], 1)
            values, targets = values[is_used], targets[:, is_used]
            if not of_targets:
                targets = links.T @ targets / np.sqrt(values)
        counts = np.asarray(links.sum(axis=0)).ravel()
        rest = (counts.sum() - values.sum()) / max(num_targets - len(values), 1)
        prior = _PRIOR * (counts / max(counts.sum(), 1)) @ targets
        anchors = (links @ targets + prior).astype(np.float32)
        return cls(values, max(float(rest), 0.0), targets, anchors, prior)

    def extended(
        self, num_nodes: tuple[int, int], anchors: np.ndarray, targets: np.ndarray
    ) -> LinkBasis:
        """Adds nodes, and links to the rows of their anchors. A new target has a row of zeros.

        Args:
            num_nodes: of anchors and of targets, with the added ones.
            anchors, targets: int64 [num_links], ends of the added links.
        """
        num_anchors, num_targets = num_nodes
        new_anchors = np.tile(self.prior, (num_anchors - len(self.anchors), 1))
        new_targets = np.zeros((num_targets - len(self.targets), len(self.values)))
        extended = replace(
            self,
            anchors=np.concatenate([self.anchors, new_anchors]).astype(np.float32),
            targets=np.concatenate([self.targets, new_targets]),
        )
        np.add.at(extended.anchors, anchors, extended.targets[targets].astype(np.float32))
        return extended


class LinkFactors(nn.Module):
    """Closed-form rows of anchors and targets behind those of an encoder, and the weights of both.

    They are EASE's regression of each target on all others, in the leading directions of the links:
    X Q diag(values / (values + l2)) of anchors, and Q of targets, divided by l2 times the diagonal
    of (X^T X + l2)^-1. Pairs that are no links are scored as by EASE.

    Args:
        is_ignored: the rows are not used, whatever their weight.
    Attributes:
        weights: of the encoder's scores, 0 or 1, and of the closed-form scores.
        l2: penalty of the regression.
    Source: Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019, equation 8.
    """

    weights: Tensor
    l2: Tensor

    def __init__(self, *, is_ignored: bool = False) -> None:
        super().__init__()
        self._is_ignored = is_ignored
        self.register_buffer("weights", torch.tensor([1.0, 0.0]))
        self.register_buffer("l2", torch.tensor(100.0))

    @property
    def is_used(self) -> bool:
        """Whether closed-form rows have a weight."""
        return not self._is_ignored and float(self.weights[1]) > 0

    def rows(self, basis: LinkBasis) -> tuple[Tensor, Tensor]:
        """float32 [num_anchors, rank] and [num_targets, rank], whose products are the scores."""
        values, l2, root = basis.values, float(self.l2), float(self.weights[1]) ** 0.5
        squares = np.square(basis.targets)
        inverse = squares @ (1 / (values + l2)) + (1 - squares.sum(axis=1)) / (l2 + basis.rest)
        anchors = basis.anchors * (root * values / (values + l2)).astype(np.float32)
        targets = root * basis.targets / (l2 * inverse)[:, None]
        return torch.from_numpy(anchors), torch.from_numpy(targets).float()

    def join(self, encoded: Tensor, rows: Tensor) -> Tensor:
        """Rows of the encoder followed by those of `rows` of the same nodes."""
        own = self.weights[0].to(encoded) * encoded
        return torch.cat([own, rows.to(encoded)], dim=1)
