"""Recommenders without gradients, of anchors, and of rows of (anchor, time)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from raygnn.recommender.known_links import LinkHistory


def ease(
    anchors: np.ndarray, targets: np.ndarray, num_nodes: tuple[int, int], l2: float = 100.0
) -> tuple[Tensor, Tensor]:
    """Regression of each target on all others, in closed form.

    Needs memory for num_targets^2 and num_anchors * num_targets numbers, and time for the inverse
    of a matrix of the smaller side.

    Args:
        anchors, targets: int64 [num_links], dense ids.
        num_nodes: numbers of anchors and of targets.
        l2: penalty of the weights.
    Returns:
        float32 [num_anchors, num_targets] and [num_targets, num_targets].

    Source: Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019, equation 8.
    """
    links = link_matrix(anchors, targets, num_nodes)
    return torch.from_numpy(links.toarray()), ease_weights(links, l2)


def link_matrix(
    anchors: np.ndarray, targets: np.ndarray, num_nodes: tuple[int, int]
) -> sparse.csr_matrix:
    """float32 [num_anchors, num_targets], 1 for each pair that is linked."""
    links = sparse.csr_matrix((np.ones(len(anchors), np.float32), (anchors, targets)), num_nodes)
    links.sum_duplicates()
    links.data[:] = 1
    return links


def ease_weights(links: sparse.csr_matrix, l2: float) -> Tensor:
    """Targets' rows of `ease`, float32 [num_targets, num_targets], from links to them."""
    ones = links[np.diff(links.indptr) > 0].astype(np.float64)
    if ones.shape[0] < ones.shape[1]:  # Woodbury's identity: l2 times the inverse of links^T links
        across = ones.T @ _inverse((ones @ ones.T).toarray(), l2).numpy()
        inverse = torch.from_numpy(-(ones.T @ across.T))
        inverse.diagonal().add_(1)
    else:
        inverse = _inverse((ones.T @ ones).toarray(), l2)
    weights = -inverse / inverse.diagonal()
    weights.fill_diagonal_(0)
    return weights.T.float()


def _inverse(square: np.ndarray, l2: float) -> Tensor:
    gram = torch.from_numpy(square)
    gram.diagonal().add_(l2)
    return torch.cholesky_inverse(torch.linalg.cholesky(gram))


def ials(
    anchors: np.ndarray,
    targets: np.ndarray,
    num_nodes: tuple[int, int],
    channels: int = 32,
    l2: float = 10.0,
    weight: float = 1.0,
    num_iterations: int = 15,
) -> tuple[Tensor, Tensor]:
    """Factorizes the matrix of links by alternating least squares.

    Args:
        anchors, targets: int64 [num_links], dense ids.
        num_nodes: numbers of anchors and of targets.
        weight: added for a link to the weight 1 of every pair.
        l2: penalty of the factors.
    Returns:
        float32 [num_anchors, channels] and [num_targets, channels]. Nodes without links have zeros
        and take no time.

    Source: Hu, Koren and Volinsky, Collaborative Filtering for Implicit Feedback Datasets, ICDM
    2008, equation 4.
    """
    linked_anchors, rows = np.unique(anchors, return_inverse=True)
    linked_targets, columns = np.unique(targets, return_inverse=True)
    ones, shape = np.ones(len(rows), np.float32), (len(linked_anchors), len(linked_targets))
    by_anchor = sparse.csr_matrix((ones, (rows, columns)), shape)
    by_target = by_anchor.T.tocsr()
    generator = torch.Generator().manual_seed(0)
    of_targets = 0.1 * torch.randn(len(linked_targets), channels, generator=generator)
    for _ in range(num_iterations):
        of_anchors = folded_in(by_anchor, of_targets, l2, weight)
        of_targets = folded_in(by_target, of_anchors, l2, weight)
    factors = torch.zeros(num_nodes[0], channels), torch.zeros(num_nodes[1], channels)
    factors[0][linked_anchors], factors[1][linked_targets] = of_anchors, of_targets
    return factors


def factorize(
    ends: np.ndarray,
    values: np.ndarray,
    num_nodes: tuple[int, int],
    channels: int,
    l2: tuple[float, float],
    num_iterations: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Factors and biases of a matrix with few known values, by alternating least squares.

    Source u and target v have the value b_u + b_v + p_u p_v; see `factorized`. Values have mean 0.

    Args:
        ends: int64 [2, num_edges], dense ids of sources and targets.
        values: float [num_edges].
        channels: width of p; 0 fits biases alone.
        l2: penalties of a bias and of a factor, as if a node had so many more values of 0.
    Returns:
        float64 [num_nodes, 1 + channels] of sources and of targets: b and p. Nodes without a value
        have zeros.
    Source: Koren, Bell and Volinsky, Matrix Factorization Techniques for Recommender Systems,
        Computer 42 (2009), equation 4.
    """
    rng = np.random.default_rng(0)
    damping = np.diag([l2[0], *[l2[1]] * channels])
    rows = [np.zeros((num, 1 + channels)) for num in num_nodes]
    rows[1][:, 1:] = 0.1 * rng.normal(size=(num_nodes[1], channels))
    orders = [np.argsort(ids, kind="stable") for ids in ends]
    for _ in range(num_iterations):
        for own, order in enumerate(orders):
            of_others = rows[1 - own][ends[1 - own][order]]
            x = np.concatenate([np.ones((len(order), 1)), of_others[:, 1:]], axis=1)
            rows[own] = _ridge(
                ends[own][order], x, values[order] - of_others[:, 0], damping, num_nodes[own]
            )
    return rows[0], rows[1]


def factorized(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """[num_edges], the values of `factorize` from the rows of both ends of each edge."""
    return sources[:, 0] + targets[:, 0] + (sources[:, 1:] * targets[:, 1:]).sum(axis=1)


def _ridge(
    ids: np.ndarray, x: np.ndarray, y: np.ndarray, damping: np.ndarray, num_nodes: int
) -> np.ndarray:
    """Ridge regressions of y on x, one per id; ids ascend."""
    out = np.zeros((num_nodes, x.shape[1]))
    found, first = np.unique(ids, return_index=True)
    gram = np.add.reduceat(x[:, :, None] * x[:, None, :], first, axis=0) + damping
    moment = np.add.reduceat(x * y[:, None], first, axis=0)
    out[found] = np.linalg.solve(gram, moment[:, :, None])[:, :, 0]
    return out


def folded_in(
    links: sparse.csr_matrix, rows: Tensor, l2: float = 10.0, weight: float = 1.0
) -> Tensor:
    """Factors of one side of `ials`, [num_own, channels], from its links and the factors of the
    other side.
    """
    channels = rows.shape[1]
    upper = torch.triu_indices(channels, channels)
    sums = functional.embedding_bag(
        torch.from_numpy(links.indices),
        torch.cat([rows[:, upper[0]] * rows[:, upper[1]], rows], dim=1),
        torch.from_numpy(links.indptr),
        mode="sum",
        per_sample_weights=torch.from_numpy(links.data),
        include_last_offset=True,
    )
    squares, right = sums.split([upper.shape[1], channels], dim=1)
    left = rows.new_empty(len(squares), channels, channels)
    left[:, upper[0], upper[1]] = left[:, upper[1], upper[0]] = weight * squares
    left += rows.T @ rows + l2 * torch.eye(channels)
    solved: Tensor = torch.linalg.solve(left, (1 + weight) * right)
    return solved


#: Scores of all targets, float32 [num_rows, num_targets], of rows at int64 positions.
RowScores = Callable[[np.ndarray], Tensor]
#: Scores of all targets from the links that rows know.
_Fit = Callable[[sparse.csr_matrix], Tensor]

#: Weight of the popularity that orders targets without own links.
_LEAST = 1e-4
#: Distinct times of a fit, and numbers of targets and links up to which there are so many.
_MOST_FITS = 4
_MOST_TARGETS, _MOST_LINKS = 3_000, 200_000
_SCORES_AT_A_TIME = 1 << 22


@dataclass(frozen=True)
class PeersInTime:
    """Peers for rows of (anchor, time). Each row is ranked by the links known at its time.

    EASE and iALS are fitted at each distinct time or, of large graphs and many times, at fewer:
    then a row reads its links as of its own time, and the last fit before it.

    Attributes:
        history: links with times.
        anchors: int64 [num_rows], dense ids.
        times: [num_rows].
    """

    history: LinkHistory
    anchors: np.ndarray
    times: np.ndarray

    def known(self, rows: np.ndarray) -> sparse.csr_matrix:
        """float32 [num_rows, num_targets], numbers of links."""
        return self.history.known_to(self.anchors[rows], self.times[rows])

    def known_last(self, scores: RowScores) -> RowScores:
        """The same with targets of known links after all others."""

        def found(rows: np.ndarray) -> Tensor:
            changed = scores(rows)
            changed[torch.from_numpy(np.stack(self.known(rows).nonzero())).unbind()] = -torch.inf
            return changed

        return found

    def popularity(self, half_life: float = 0.0) -> RowScores:
        """Number of links of each target, whose weight halves with age."""

        def at(moments: np.ndarray) -> RowScores:
            counts = self.history.popularity_at(moments, half_life).astype(np.float32)
            return lambda rows: torch.from_numpy(counts[np.searchsorted(moments, self.times[rows])])

        num_blocks = -(-len(self._moments) * self.history.num_nodes[1] // _SCORES_AT_A_TIME)
        return self._by_moments(num_blocks, at)

    def own_targets(self, half_life: float = 0.0) -> RowScores:
        """Number of the anchor's own links, whose weight halves with age, then popularity."""
        popularity = self.popularity()

        def scores(rows: np.ndarray) -> Tensor:
            own = self.history.known_to(self.anchors[rows], self.times[rows], half_life)
            return torch.from_numpy(own.toarray()) + _LEAST * popularity(rows)

        return scores

    def ease(self, l2: float) -> RowScores:
        def fit(history: LinkHistory) -> _Fit:
            links = link_matrix(history.anchors, history.targets, history.num_nodes)
            weights = ease_weights(links, l2).T.contiguous().numpy()
            return lambda known: torch.from_numpy(known.sign() @ weights)

        return self._fitted(fit, self.history.num_nodes[1] <= _MOST_TARGETS)

    def ials(self, l2: float) -> RowScores:
        def fit(history: LinkHistory) -> _Fit:
            _, targets = ials(history.anchors, history.targets, history.num_nodes, l2=l2)
            return lambda known: folded_in(known, targets, l2) @ targets.T

        return self._fitted(fit, len(self.history.anchors) <= _MOST_LINKS)

    def _fitted(self, fit: Callable[[LinkHistory], _Fit], is_small: bool) -> RowScores:
        def at(moments: np.ndarray) -> RowScores:
            score = fit(self.history.as_of(moments[0]))
            return lambda rows: score(self.known(rows))

        return self._by_moments(_MOST_FITS if is_small else 1, at)

    @cached_property
    def _moments(self) -> np.ndarray:
        return np.unique(self.times)

    def _by_moments(self, num_blocks: int, at: Callable[[np.ndarray], RowScores]) -> RowScores:
        """Scores rows by blocks of consecutive times. `at` gets the times of a block."""
        blocks = np.array_split(self._moments, min(num_blocks, len(self._moments)))
        starts = np.array([block[0] for block in blocks])
        # Batches come in the order of times, so one has rows of few blocks.
        of_block = lru_cache(maxsize=2)(lambda number: at(blocks[number]))

        def scores(rows: np.ndarray) -> Tensor:
            number = np.searchsorted(starts, self.times[rows], side="right") - 1
            found = torch.empty(len(rows), self.history.num_nodes[1])
            for each in np.unique(number).tolist():
                chosen = np.flatnonzero(number == each)
                found[torch.from_numpy(chosen)] = of_block(each)(rows[chosen])
            return found

        return scores
