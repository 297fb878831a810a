"""Random negatives: nodes of the whole graph, drawn by the key of a batch."""

from __future__ import annotations

import numpy as np
from numba import njit

from raygnn.data.edge_types import EdgeType
from raygnn.errors import ConfigError, DataError
from raygnn.sampling.pick import draw_below
from raygnn.sampling.protocols import GraphStore
from raygnn.sampling.rng import BatchKey, chain_key, text_key

UNIFORM, BY_DEGREE = "uniform", "degree"

# The unigram exponent of word2vec: Mikolov et al., arXiv:1310.4546, section 2.2.
_DEGREE_EXPONENT = 0.75
# Weights are whole numbers, the same on all platforms: of degree 1 it is this.
_WEIGHT_OF_ONE = 1024


class RandomNegatives:
    """A distribution over the nodes of a type; draws are independent, with replacement.

    So there may be more draws than nodes, and a draw may be a positive.

    Args:
        num_nodes: of the type.
        degrees: int64 [num_nodes]: nodes are drawn in proportion to degree^0.75, those of degree 0
            never; None draws uniformly.
    Raises:
        DataError: there is no node to draw.
    """

    def __init__(self, num_nodes: int, degrees: np.ndarray | None = None) -> None:
        self._num_nodes = num_nodes
        self._cumulative: np.ndarray | None = None
        if num_nodes == 0:
            raise DataError(
                "random negatives cannot be drawn: the target type has no nodes. Add some, or set "
                "the number of random negatives to 0."
            )
        if degrees is None:
            return
        weights = np.rint(degrees.astype(np.float64) ** _DEGREE_EXPONENT * _WEIGHT_OF_ONE)
        self._cumulative = np.cumsum(weights.astype(np.int64))
        if self._cumulative[-1] == 0:
            raise DataError(
                "random negatives cannot be drawn by degree: no node of the target type has an "
                "edge. Draw them uniformly."
            )

    @classmethod
    def of_graph(
        cls, graph: GraphStore, node_type: str, how: str, edge_type: EdgeType | None = None
    ) -> RandomNegatives:
        """The distribution of that name over the nodes of a type.

        Args:
            how: `uniform` or `degree`.
            edge_type: whose edges count for `degree`, by destination if that is the node type, else
                by source; None counts all types with it as destination, else all as source.
        Raises:
            ConfigError: there is no distribution of that name.
            DataError: there is no node to draw.
        """
        if how not in (UNIFORM, BY_DEGREE):
            raise ConfigError(
                f"negatives={how!r} is invalid: random negatives are drawn {UNIFORM} or by "
                f"{BY_DEGREE}. Set one of these."
            )
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

    def log_probability(self, nodes: np.ndarray) -> np.ndarray:
        """float64 [num_nodes], of one draw being each node; -inf where it never is."""
        if self._cumulative is None:
            return np.full(len(nodes), -np.log(self._num_nodes))
        before = np.where(nodes > 0, self._cumulative[nodes - 1], 0)
        with np.errstate(divide="ignore"):
            weights: np.ndarray = np.log((self._cumulative[nodes] - before).astype(np.float64))
        return weights - np.log(float(self._cumulative[-1]))


def _degrees(graph: GraphStore, node_type: str, edge_type: EdgeType | None) -> np.ndarray:
    edge_types = graph.edge_types if edge_type is None else [edge_type]
    into = [t for t in edge_types if t[2] == node_type]
    nodes = np.arange(graph.num_nodes(node_type))
    is_in = graph.direction == "in"
    total = np.zeros(len(nodes), np.int64)
    for found in into:
        total += (graph.degrees if is_in else graph.neighbor_degrees)(found, nodes)
    for found in [] if into else [t for t in edge_types if t[0] == node_type]:
        total += (graph.neighbor_degrees if is_in else graph.degrees)(found, nodes)
    return total


@njit(nogil=True, cache=True)
def _draw(start, bound, draws):  # type: ignore[no-untyped-def]
    for i in range(len(draws)):
        draws[i] = draw_below(start, i, bound)
