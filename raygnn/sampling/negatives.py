"""Random negatives of training, known links among them, and candidates of evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.errors import DataError
from raygnn.sampling.pick import draw_below
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.rng import BatchKey, chain_key, seed_order, text_key

if TYPE_CHECKING:
    from raygnn.data.links.supervision import KnownLinks


UNIFORM, BY_DEGREE = "uniform", "degree"
#: In place of a negative or candidate, if an anchor has fewer targets that it is not linked to.
NONE = -1

# The unigram exponent of word2vec: Mikolov et al., arXiv:1310.4546, section 2.2.
_DEGREE_EXPONENT = 0.75
# Weights are whole numbers, the same on all platforms: of degree 1 it is this.
_WEIGHT_OF_ONE = 1024
# Draws per wanted candidate; known links among them are dropped.
_SPARE = 2


class RandomNegatives:
    """A distribution over nodes. Draws are independent, with replacement, and may be positives.

    Args:
        degrees: int64 [num_nodes]: draws in proportion to degree^0.75, never nodes of degree 0.
            None draws uniformly.
    Raises:
        DataError: there is no node to draw.
    """

    def __init__(self, num_nodes: int, degrees: np.ndarray | None = None) -> None:
        self._num_nodes = num_nodes
        self._cumulative: np.ndarray | None = None
        if num_nodes == 0:
            raise DataError(
                "random negatives cannot be drawn: the target type has no nodes. Add some, or set "
                "the number of random negatives to 0. [sampling-negatives-none]"
            )
        if degrees is None:
            return
        weights = np.rint(degrees.astype(np.float64) ** _DEGREE_EXPONENT * _WEIGHT_OF_ONE)
        self._cumulative = np.cumsum(weights.astype(np.int64))
        if self._cumulative[-1] == 0:
            raise DataError(
                "random negatives cannot be drawn by degree: no node of the target type has an "
                "edge. Draw them uniformly. [sampling-negatives-none]"
            )

    @classmethod
    def of_graph(
        cls, graph: GraphStore, node_type: str, how: str, edge_type: EdgeType | None = None
    ) -> RandomNegatives:
        """The named distribution over the nodes of a type.

        Args:
            how: `uniform` or `degree`.
            edge_type: edges counted for `degree`, by destination if that is the node type, else by
                source. None counts all types with it as destination, else all as source.
        Raises:
            DataError: there is no node to draw.
        """
        num_nodes = graph.num_nodes(node_type)
        degrees = None
        if how == BY_DEGREE and num_nodes:
            degrees = _degrees(graph, node_type, edge_type)
        return cls(num_nodes, degrees)

    def draw(self, num_draws: int, key: BatchKey) -> np.ndarray:
        """int64 [num_draws], dense ids: a pure function of the arguments and the distribution."""
        start = np.uint64(chain_key(key, text_key("negatives")))
        draws = np.empty(num_draws, np.int64)
        if self._cumulative is None:
            _draw(start, self._num_nodes, draws)
            return draws
        _draw(start, self._cumulative[-1], draws)
        return np.searchsorted(self._cumulative, draws, side="right")

    def probability(self, nodes: np.ndarray) -> np.ndarray:
        """float64 [num_nodes], probability of one draw."""
        if self._cumulative is None:
            return np.full(len(nodes), 1 / self._num_nodes)
        before = np.where(nodes > 0, self._cumulative[nodes - 1], 0)
        weights: np.ndarray = (self._cumulative[nodes] - before) / self._cumulative[-1]
        return weights


class KnownOnDevice:
    """Known links by anchor as ascending numbers, among which a device searches for pairs."""

    def __init__(
        self, known: KnownLinks, num_anchors: int, num_targets: int, device: torch.device
    ) -> None:
        self._num_anchors, self._num_targets = num_anchors, num_targets
        self._is_one_type = known.is_one_type
        rows = [np.repeat(np.arange(num_anchors), np.diff(part.indptr)) for part in known.parts]
        numbers = [
            (relation * num_anchors + anchors) * num_targets + part.targets
            for relation, (anchors, part) in enumerate(zip(rows, known.parts, strict=True))
        ]
        beyond = [np.iinfo(np.int64).max]
        self._numbers = torch.from_numpy(np.concatenate([*numbers, beyond])).to(device)

    def mask(self, anchors: Tensor, targets: Tensor, relations: Tensor | None) -> Tensor:
        """See `KnownLinks.mask`."""
        rows = anchors if relations is None else relations * self._num_anchors + anchors
        wanted = rows[:, None] * self._num_targets + targets
        mask = self._numbers[torch.searchsorted(self._numbers, wanted)] == wanted
        return mask | (anchors[:, None] == targets) if self._is_one_type else mask


class EvaluationCandidates:
    """Distinct candidates of each link: the first valid ones of a fixed uniform order.

    With an order by degree, candidates would have more links than the targets of random links, and
    a model that reads degrees could tell them apart. Invalid are the link's own target, and known
    links of its anchor. A link has fewer candidates if fewer are valid among the first `_SPARE`
    times as many: ranking a known link higher is not an error.

    Args:
        num_candidates: most of a link, at most the number of other nodes.
        known: known links, which are invalid; None allows them.
        is_one_type: anchors and candidates have one type, and no anchor is its own candidate.
    """

    def __init__(
        self,
        num_nodes: int,
        num_candidates: int,
        key: BatchKey,
        known: KnownLinks | None,
        *,
        is_one_type: bool,
    ) -> None:
        num_out = 2 if is_one_type else 1
        self.num_candidates = max(0, min(num_candidates, num_nodes - num_out))
        num_drawn = max(_SPARE * self.num_candidates, self.num_candidates + num_out)
        self._order = seed_order(num_nodes, key, 0, 0, min(num_drawn, num_nodes))
        self._known = known
        self._is_one_type = is_one_type

    def choose(
        self,
        anchors: np.ndarray,
        targets: np.ndarray,
        relations: np.ndarray | None,
        known_rows: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Candidates of some links.

        Args:
            anchors, targets: int64 [num_links], dense ids.
            known_rows: int64 [num_links], row of each link in the known links.
        Returns:
            int64 [num_nodes], dense ids of all candidates, and int64 [num_links, num_candidates],
            positions of each link's among them, then `NONE`.
        """
        is_invalid = targets[:, None] == self._order
        if self._is_one_type:
            is_invalid |= anchors[:, None] == self._order
        if self._known is not None:
            is_invalid |= self._known.mask(known_rows, self._order, relations)
        chosen = np.full((len(anchors), self.num_candidates), NONE)
        num_used = _choose(is_invalid, chosen)
        return self._order[:num_used], chosen


@njit(nogil=True, cache=True)
def _choose(is_invalid, chosen):  # type: ignore[no-untyped-def]
    """Begins each row of `chosen` with its first valid columns; returns the number read."""
    num_used = 0
    for i in range(len(chosen)):
        count = 0
        for j in range(is_invalid.shape[1]):
            if count == chosen.shape[1]:
                break
            if not is_invalid[i, j]:
                chosen[i, count] = j
                count += 1
                num_used = max(num_used, j + 1)
    return num_used


def _degrees(graph: GraphStore, node_type: str, edge_type: EdgeType | None) -> np.ndarray:
    edge_types = graph.edge_types if edge_type is None else [edge_type]
    into = [t for t in edge_types if t[2] == node_type]
    nodes = np.arange(graph.num_nodes(node_type))
    total = np.zeros(len(nodes), np.int64)
    for found in into:
        total += graph.degrees(found, nodes)
    for found in [] if into else [t for t in edge_types if t[0] == node_type]:
        total += graph.neighbor_degrees(found, nodes)
    return total


@njit(nogil=True, cache=True)
def _draw(start, bound, draws):  # type: ignore[no-untyped-def]
    for i in range(len(draws)):
        draws[i] = draw_below(start, i, bound)
