"""Peers that rank the targets of rows of (anchor, time) from the links known at each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.peers import ease_weights, folded_in, ials, link_matrix

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
