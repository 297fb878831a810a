"""A ridge regression of links on links: rows of anchors and targets, whose products are scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import linalg, sparse
from torch import Tensor

from raygnn.recommender.known_links import LinkHistory

#: Directions that are computed, as many as the settings read.
RANKS = (128, 512, 2048)
#: Linked nodes of the smaller side up to which all directions are computed, which is then faster.
_MOST_EXACT = 2048
#: Linked targets up to which the dense matrix of their common anchors fits into memory, and how
#: many of its numbers are multiplied in the time of a link.
_MOST_DENSE, _DENSE_FASTER = 8192, 30
#: Directions beyond those that are read, and products with the matrix: a few make the others
#: accurate.
_MORE_DIRECTIONS, _NUM_PRODUCTS = 32, 3
#: Anchors of one product with directions, so that the product fits into memory.
_ANCHORS_AT_A_TIME = 50_000
#: Least divisor, of links that are so old that they hardly count.
_LEAST_LINKS = 1e-6
#: Weight of the links of an anchor that many others follow, if their order matters.
_LEAST_WEIGHT = 0.1
#: Links that each anchor has besides its own, spread over the targets by their popularity. They
#: rank the targets for an anchor without links.
_PRIOR = 1e-3
#: Penalties of the regression of target rows on attributes, in attributes of variance 1.
_ATTRIBUTE_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)


class RegressionSettings(NamedTuple):
    """Settings that validation chooses.

    Attributes:
        power: of a target's number of links, that its links are divided by in the basis.
        rank: directions that are read.
        penalty: of the regression, as a share of the largest value.
        is_rescaled: scores are multiplied by what links of the target were divided by.
        half_life: age at which links count half; 0 if their age does not matter.
        hides_known: targets of earlier links of a row with a time are not ranked.
        anchor_power: of an anchor's number of links, as `power`.
        recency: later links of an anchor after which a link counts about half in its row; 0 if
            their order does not matter.
        trend: weight of the targets' popularity, which is added to the scores.
        trend_half_life: age at which links count half in this popularity.
    """

    power: float = 0.25
    rank: float = 128
    penalty: float = 0.3
    is_rescaled: float = False
    half_life: float = 0.0
    hides_known: float = False
    anchor_power: float = 0.5
    recency: float = 0.0
    trend: float = 0.0
    trend_half_life: float = 0.0

    @property
    def of_basis(self) -> tuple[float, ...]:
        """The settings that a basis depends on."""
        return self.power, self.anchor_power, self.half_life, self.max_rank

    @property
    def max_rank(self) -> int:
        """Directions that are computed."""
        return next((rank for rank in RANKS if rank >= self.rank), RANKS[-1])


@dataclass(frozen=True)
class LinkBasis:
    """Leading directions of the links: X^T X = V diag(values) V^T, where X is the matrix of links,
    divided by powers D of the numbers of links of both ends.

    Attributes:
        power: of a target's number of links, that its links are divided by.
        values: float64 [rank], descending, divided by the largest.
        directions: float32 [num_targets, rank], D^-1 V: an anchor's row is the sum over its links.
        num_links: float64 [num_targets], sum of their weights.
        links: float32 [num_anchors, num_targets], weights of links, of all anchors or of some.
        prior: float32 [rank], the row of an anchor without links.
        history: the links.
        added: links of nodes that were added later, if any.
    """

    power: float
    values: np.ndarray
    directions: np.ndarray
    num_links: np.ndarray
    links: sparse.csr_matrix
    prior: np.ndarray
    history: LinkHistory
    added: sparse.csr_matrix | None = None

    @classmethod
    def of(
        cls, history: LinkHistory, settings: RegressionSettings, rows: np.ndarray | None = None
    ) -> LinkBasis:
        """Decomposes the links. Nodes without links change no bit of the others' rows.

        Args:
            rows: anchors that have rows. Default: all.
        Source: Halko, Martinsson and Tropp, Finding Structure with Randomness, arXiv:0909.4061,
            algorithm 4.4.
        """
        links = history.matrix(settings.half_life)
        of_anchors, of_targets = (np.asarray(links.sum(axis)).ravel() for axis in (1, 0))
        linked = np.flatnonzero(of_targets)
        used = links[of_anchors > 0][:, linked]
        scale = sparse.diags(np.maximum(of_targets[linked], _LEAST_LINKS) ** -settings.power)
        divisors = np.maximum(of_anchors[of_anchors > 0], _LEAST_LINKS)
        scaled = (sparse.diags(divisors**-settings.anchor_power) @ used @ scale).tocsr()
        values, columns = _leading(scaled, settings.max_rank)
        directions = np.zeros((len(of_targets), len(values)), np.float32)
        directions[linked] = scale @ columns
        share = of_targets / max(of_targets.sum(), _LEAST_LINKS)
        return cls(
            settings.power,
            np.maximum(values, 0) / max(values.max(initial=0), 1e-12),
            directions,
            of_targets,
            (links if rows is None else links[rows]).astype(np.float32),
            (_PRIOR * share @ directions).astype(np.float32),
            history,
        )

    def weighed(self, recency: float) -> sparse.csr_matrix:
        """`links`, in which earlier links of an anchor count less if `recency` is not 0."""
        num_later = self.history.num_later
        if not recency or num_later is None:
            return self.links
        links = self.links.copy()
        weights = _LEAST_WEIGHT + (1 - _LEAST_WEIGHT) * 0.5 ** (num_later / recency)
        links.data *= weights.astype(np.float32)
        return links

    def extended(
        self, num_nodes: tuple[int, int], anchors: np.ndarray, targets: np.ndarray
    ) -> LinkBasis:
        """Adds nodes, and links to the rows of their anchors, but not to `links`, which do not
        become older. A new target counts as without links.

        Args:
            num_nodes: of anchors and of targets, with the added ones.
            anchors, targets: int64 [num_links], ends of the added links.
        """
        num_targets = num_nodes[1] - len(self.directions)
        links = self.links.copy()
        links.resize(num_nodes)
        ones = np.ones(len(anchors), np.float32)
        return replace(
            self,
            directions=np.pad(self.directions, ((0, num_targets), (0, 0))),
            num_links=np.pad(self.num_links, (0, num_targets)),
            links=links,
            added=sparse.csr_matrix((ones, (anchors, targets)), num_nodes),
        )

    def rows(
        self, settings: RegressionSettings, attributes: np.ndarray | None = None
    ) -> tuple[AnchorRows, Tensor]:
        """Rows of anchors and of targets, float32 [num_targets, rank], whose products are scores.

        Args:
            attributes: float [num_targets, num_attributes]. A target without links has the row that
                these predict. Default: the mean row of the others.
        """
        used = slice(int(settings.rank))
        values = self.values[used]
        gain = (values / (values + settings.penalty)).astype(np.float32)
        scale = np.maximum(self.num_links, _LEAST_LINKS) ** (
            (1 + settings.is_rescaled) * self.power
        )
        targets = self.directions[:, used] * scale.astype(np.float32)[:, None]
        directions, prior = self.directions[:, used] * gain, self.prior[used] * gain
        if settings.trend:
            popularity = self.history.popularity(settings.trend_half_life).astype(np.float32)
            popularity = np.pad(popularity, (0, len(targets) - len(popularity)))
            targets = np.concatenate([targets, settings.trend * popularity[:, None]], axis=1)
            directions = np.pad(directions, ((0, 0), (0, 1)))
            prior = np.append(prior, np.float32(1))
        has_links = self.num_links > 0
        if has_links.any() and not has_links.all():
            targets[~has_links] = _predicted(targets[has_links], has_links, attributes)
        links = self.weighed(settings.recency)
        return AnchorRows(links, self.added, directions, prior), torch.from_numpy(targets)


class AnchorRows:
    """Rows of anchors, float32 [num_anchors, rank], computed when they are read."""

    def __init__(
        self,
        links: sparse.csr_matrix,
        added: sparse.csr_matrix | None,
        directions: np.ndarray,
        prior: np.ndarray,
    ) -> None:
        self._links, self._added = links, added
        self._directions, self._prior = directions, prior

    def __len__(self) -> int:
        return int(self._links.shape[0])

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        chosen = index.cpu().numpy() if isinstance(index, Tensor) else index
        rows = self._links[chosen] @ self._directions + self._prior
        if self._added is not None:
            rows += self._added[chosen] @ self._directions
        return torch.from_numpy(rows)


def _predicted(
    rows: np.ndarray, has_links: np.ndarray, attributes: np.ndarray | None
) -> np.ndarray:
    """Rows of targets without links, by a ridge regression of the others' on attributes.

    The penalty is the best for targets that are left out one at a time.
    """
    mean = rows.mean(axis=0)
    if attributes is None:
        return np.tile(mean, (int((~has_links).sum()), 1))
    known = attributes[has_links].astype(np.float64)
    spread = known.std(axis=0)
    is_used = spread > 1e-6 * np.abs(known).max(axis=0, initial=0)
    center, spread = known[:, is_used].mean(axis=0), spread[is_used]
    known = (known[:, is_used] - center) / spread
    u, s, v = np.linalg.svd(known, full_matrices=False)
    centered, best = rows - mean, (np.inf, 0.0)
    products = u.T @ centered
    for penalty in _ATTRIBUTE_PENALTIES:
        shrunk = s**2 / (s**2 + penalty * len(known))
        left_out = 1 - 1 / len(known) - (u**2 @ shrunk)
        error = (centered - u @ (shrunk[:, None] * products)) / np.maximum(left_out, 1e-9)[:, None]
        best = min(best, (float(np.square(error).sum()), penalty))
    coefficients = v.T @ ((s / (s**2 + best[1] * len(known)))[:, None] * products)
    others = (attributes[~has_links][:, is_used].astype(np.float64) - center) / spread
    return (mean + others @ coefficients).astype(np.float32)


def _leading(matrix: sparse.csr_matrix, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `rank` squared singular values, descending, and right singular vectors."""
    num_rows, num_columns = matrix.shape
    if num_columns <= min(_MOST_EXACT, num_rows):
        values, columns = linalg.eigh(_squared(matrix)(np.eye(num_columns)))
    else:
        if num_rows <= _MOST_EXACT:
            multiply, columns = _squared(matrix), _orthonormal(matrix.T.toarray())
        else:
            multiply = _squared(matrix.astype(np.float32))
            size = num_columns, min(rank + _MORE_DIRECTIONS, num_columns)
            columns = np.random.default_rng(0).standard_normal(size, np.float32)
            for _ in range(_NUM_PRODUCTS - 1):
                columns = linalg.lu(multiply(columns), permute_l=True, check_finite=False)[0]
            columns = linalg.qr(multiply(columns), mode="economic", check_finite=False)[0]
        values, mix = linalg.eigh(columns.T @ multiply(columns))
        columns = columns @ mix[:, -rank:]
    return values[::-1][:rank].astype(np.float64), columns[:, ::-1][:, :rank]


def _squared(matrix: sparse.csr_matrix) -> Callable[[np.ndarray], np.ndarray]:
    """Multiplies columns by matrix^T matrix, whichever way takes less time."""
    num_rows, num_columns = matrix.shape
    if num_columns <= _MOST_DENSE and num_columns**2 < _DENSE_FASTER * matrix.nnz:
        square = (matrix.T @ matrix).toarray()
        return lambda columns: square @ columns

    def multiply(columns: np.ndarray) -> np.ndarray:
        out = np.zeros_like(columns)
        for first in range(0, num_rows, _ANCHORS_AT_A_TIME):
            part = matrix[first : first + _ANCHORS_AT_A_TIME]
            out += part.T @ (part @ columns)
        return out

    return multiply


def _orthonormal(rows: np.ndarray) -> np.ndarray:
    """Columns that span those of `rows`, but for directions that hardly matter."""
    squares, mix = linalg.eigh(rows.T @ rows)
    is_used = squares > 1e-10 * squares[-1]
    return rows @ (mix[:, is_used] / np.sqrt(squares[is_used]))
