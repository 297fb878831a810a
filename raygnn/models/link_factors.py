"""Rows of anchors and targets from the links alone, in closed form, beside those of an encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import linalg, sparse
from torch import Tensor, nn

from raygnn.data.links.dated_links import DatedLinks
from raygnn.data.time_units import Time

MAX_RANK = 1024
#: Linked nodes of the smaller side up to which all directions are computed, which is then faster.
_MOST_EXACT = 2048
#: Directions beyond `MAX_RANK`, and products with the matrix: a few make the others accurate.
_MORE_DIRECTIONS, _NUM_PRODUCTS = 32, 6
#: Least divisor, of links that are so old that they hardly count.
_LEAST_LINKS = 1e-6
#: Weight of the links of an anchor that many others follow, if their order matters.
_LEAST_WEIGHT = 0.1
#: Links that each anchor has besides its own, spread over the targets by their popularity. They
#: rank the targets for an anchor without links.
_PRIOR = 1e-3


class SpectralFilter(NamedTuple):
    """The part of a basis that scores use.

    Attributes:
        power: of a target's number of links, that its links are divided by in the basis.
        rank: directions that are read.
        penalty: of the regression, as a share of the largest value.
        is_rescaled: scores are multiplied by what links of the target were divided by.
        half_life: age at which links of rows with times count half; 0 if their age does not matter.
        hides_known: targets of earlier links of a row with a time are not ranked.
        anchor_power: of an anchor's number of links, as `power`.
        recency: later links of an anchor after which a link counts about half in its row; 0 if
            their order does not matter.
    """

    power: float = 0.25
    rank: float = 128
    penalty: float = 0.3
    is_rescaled: float = False
    half_life: float = 0.0
    hides_known: float = False
    anchor_power: float = 0.5
    recency: float = 0.0

    @property
    def of_basis(self) -> tuple[float, float, float]:
        """The settings that a basis depends on."""
        return self.power, self.anchor_power, self.half_life


@dataclass(frozen=True)
class LinkBasis:
    """Leading directions of the links: X^T X = V diag(values) V^T, where X is the matrix of links,
    divided by powers D of the numbers of links of both ends.

    Attributes:
        power: of a target's number of links, that its links are divided by.
        values: float64 [rank], descending, divided by the largest.
        directions: float32 [num_targets, rank], D^-1 V: an anchor's row is the sum over its links.
        num_links: float64 [num_targets], sum of their weights.
        links: [num_anchors, num_targets], of all anchors or of some, and their rows
        anchors: float32 [num_anchors, rank], with
        prior: float32 [rank], the row of an anchor without links.
        num_later: float64 [num_links], later links of the anchor of each of `links`, if known.
    """

    power: float
    values: np.ndarray
    directions: np.ndarray
    num_links: np.ndarray
    links: sparse.csr_matrix
    anchors: np.ndarray
    prior: np.ndarray
    num_later: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        links: sparse.csr_matrix,
        settings: SpectralFilter,
        rows: np.ndarray | None = None,
        num_later: np.ndarray | None = None,
    ) -> LinkBasis:
        """Decomposes a matrix of weights of links, [num_anchors, num_targets].

        Nodes without links change no bit of the others' rows. Needs memory for three times
        `MAX_RANK` float64 numbers per node.

        Args:
            settings: of which both powers are read.
            rows: anchors whose rows are computed. Default: all.
            num_later: of all links, if all rows are computed.
        Source: Halko, Martinsson and Tropp, Finding Structure with Randomness, arXiv:0909.4061,
            algorithm 4.4.
        """
        links = sparse.csr_matrix(links, dtype=np.float64)
        of_anchors, of_targets = (np.asarray(links.sum(axis)).ravel() for axis in (1, 0))
        linked = np.flatnonzero(of_targets)
        used = links[of_anchors > 0][:, linked]
        scale = sparse.diags(np.maximum(of_targets[linked], _LEAST_LINKS) ** -settings.power)
        divisors = np.maximum(of_anchors[of_anchors > 0], _LEAST_LINKS)
        scaled = sparse.diags(divisors**-settings.anchor_power) @ used @ scale
        values, columns = _leading(scaled)
        directions = np.zeros((len(of_targets), len(values)))
        directions[linked] = scale @ columns
        prior = _PRIOR * (of_targets / max(of_targets.sum(), _LEAST_LINKS)) @ directions
        anchors = links if rows is None else links[rows]
        return cls(
            settings.power,
            np.maximum(values, 0) / max(values.max(initial=0), 1e-12),
            directions.astype(np.float32),
            of_targets,
            anchors,
            (anchors @ directions + prior).astype(np.float32),
            prior.astype(np.float32),
            num_later,
        )

    @classmethod
    def as_of(
        cls, links: DatedLinks, time: Time, settings: SpectralFilter, rows: np.ndarray | None = None
    ) -> LinkBasis:
        """Decomposes the links that are known at a time."""
        return cls.of(links.as_of(time, settings.half_life), settings, rows)

    def rows_of_anchors(self, recency: float) -> np.ndarray:
        """`anchors`, in which earlier links count less if `recency` is not 0."""
        if not recency or self.num_later is None:
            return self.anchors
        lacking = self.links.copy()
        lacking.data *= (1 - _LEAST_WEIGHT) * (1 - 0.5 ** (self.num_later / recency))
        return self.anchors - (lacking @ self.directions).astype(np.float32)

    def extended(
        self, num_nodes: tuple[int, int], anchors: np.ndarray, targets: np.ndarray
    ) -> LinkBasis:
        """Adds nodes, and links to the rows of their anchors, but not to `links`, which do not
        become older. A new target counts as without links.

        Args:
            num_nodes: of anchors and of targets, with the added ones.
            anchors, targets: int64 [num_links], ends of the added links.
        """
        num_anchors, num_targets = (
            num - len(rows)
            for num, rows in zip(num_nodes, (self.anchors, self.directions), strict=True)
        )
        links = self.links.copy()
        links.resize(num_nodes)
        extended = replace(
            self,
            directions=np.pad(self.directions, ((0, num_targets), (0, 0))),
            num_links=np.pad(self.num_links, (0, num_targets)),
            links=links,
            anchors=np.concatenate([self.anchors, np.tile(self.prior, (num_anchors, 1))]),
        )
        np.add.at(extended.anchors, anchors, extended.directions[targets])
        return extended


def _leading(matrix: sparse.csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """At most `MAX_RANK` squared singular values, descending, and right singular vectors."""
    num_rows, num_columns = matrix.shape
    transposed = matrix.T.tocsr()
    if min(matrix.shape) <= _MOST_EXACT and num_rows >= num_columns:
        values, columns = linalg.eigh((transposed @ matrix).toarray())
    else:
        if num_rows <= _MOST_EXACT:
            columns = _orthonormal(transposed.toarray())
        else:
            size = num_columns, MAX_RANK + _MORE_DIRECTIONS
            columns = np.random.default_rng(0).standard_normal(size)
            for _ in range(_NUM_PRODUCTS):
                columns = _orthonormal(transposed @ (matrix @ columns))
        products = matrix @ columns
        values, mix = linalg.eigh(products.T @ products)
        columns = columns @ mix[:, -MAX_RANK:]
    return values[::-1][:MAX_RANK], columns[:, ::-1][:, :MAX_RANK]


def _orthonormal(rows: np.ndarray) -> np.ndarray:
    """Columns that span those of `rows`, but for directions that hardly matter."""
    squares, mix = linalg.eigh(rows.T @ rows)
    is_used = squares > 1e-10 * squares[-1]
    return rows @ (mix[:, is_used] / np.sqrt(squares[is_used]))


class LinkFactors(nn.Module):
    """Closed-form rows of anchors and targets behind those of an encoder, and the weights of both.

    They are a ridge regression of the links of an anchor on themselves, in the leading directions
    V of a matrix of links that is divided by powers D of the numbers of links: with x the links of
    an anchor, x D^-1 V diag(values / (values + penalty)) and, of targets, V or D V.

    Args:
        is_ignored: the rows are not used, whatever their weight.
        by_time: anchors are rows of (anchor, time), with a basis of the links known at each time.
    Attributes:
        weights: of the encoder's scores, at most 1, and of the closed-form scores.
        filter: float32 [8], a `SpectralFilter`.
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
        self.register_buffer("filter", torch.tensor(SpectralFilter(), dtype=torch.float32))

    @property
    def is_used(self) -> bool:
        """Whether closed-form rows have a weight."""
        return not self._is_ignored and float(self.weights[1]) > 0

    @property
    def settings(self) -> SpectralFilter:
        return SpectralFilter(*self.filter.tolist())

    def rows(self, basis: LinkBasis) -> tuple[Tensor, Tensor]:
        """float32 [num_anchors, rank] and [num_targets, rank], whose products are the scores."""
        _, rank, penalty, is_rescaled, *_ = self.settings
        used, root = slice(int(rank)), float(self.weights[1]) ** 0.5
        gain = root * basis.values[used] / (basis.values[used] + penalty)
        scale = root * np.maximum(basis.num_links, _LEAST_LINKS) ** (
            (1 + is_rescaled) * basis.power
        )
        anchors = basis.rows_of_anchors(self.settings.recency)[:, used] * gain.astype(np.float32)
        targets = basis.directions[:, used] * scale.astype(np.float32)[:, None]
        has_links = basis.num_links > 0
        if has_links.any():  # a target without links has the mean score of the others
            targets[~has_links] = targets[has_links].mean(axis=0)
        return torch.from_numpy(anchors), torch.from_numpy(targets)

    def hidden(self, basis: LinkBasis) -> sparse.csr_matrix | None:
        """Known links of the anchors, if their targets are not ranked."""
        return basis.links if self.settings.hides_known else None

    def join(self, encoded: Tensor, rows: Tensor) -> Tensor:
        """Rows of the encoder followed by those of `rows` of the same nodes."""
        own = self.weights[0].sqrt().to(encoded) * encoded
        return torch.cat([own, rows.to(encoded)], dim=1)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        if state.pop(f"{prefix}l2", None) is not None:  # of EASE, in another unit
            state[f"{prefix}filter"] = self.filter
        if (older := state.get(f"{prefix}filter")) is not None:  # without settings of times
            state[f"{prefix}filter"] = torch.cat([older, self.filter[len(older) :].to(older)])
        super()._load_from_state_dict(state, prefix, *args)
