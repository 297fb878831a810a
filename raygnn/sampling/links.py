"""Which links of a batch's anchors are in its loss, and which edges repeat them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raygnn.data.edge_types import EdgeType
from raygnn.sampling import pick as kernels
from raygnn.sampling.rng import RNG_VERSION, chain_key, text_key

if TYPE_CHECKING:
    from raygnn.data.links.supervision import SupervisionEdges


class Links(NamedTuple):
    """Links of some anchors, anchor by anchor.

    Attributes:
        anchor: int64 [num_links], the number of the anchor among those asked for.
        target: int64 [num_links], dense ids.
        place: int64 [num_links], positions among the links of the split.
    """

    anchor: np.ndarray
    target: np.ndarray
    place: np.ndarray


class LinkDraws:
    """Draws links of anchors: each epoch others, where an anchor has more than are wanted.

    Args:
        limit: links per anchor, drawn without replacement; None takes all.
    """

    def __init__(
        self, edges: SupervisionEdges, limit: int | None, seed: int, split: str, what: str
    ) -> None:
        self._edges = edges
        self._fanout = kernels.ALL if limit is None else limit
        self._key = (RNG_VERSION, seed, text_key(split), text_key(what))

    def draw(self, places: np.ndarray, epoch: int) -> Links:
        """Links of the anchors at these places: each anchor's are a pure function of the epoch."""
        starts, degrees = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        offsets = np.empty(len(places) + 1, np.int64)
        given = (places, self._fanout, False)
        kernels.find_rows(self._edges.indptr, *given, starts, degrees, offsets)
        chosen = np.empty(offsets[-1], np.int64)
        table = np.zeros(kernels.membership_table(self._fanout, False), np.int64)
        key = np.uint64(chain_key(*self._key, epoch))
        kernels.pick_positions(
            places,
            kernels.NO_SALTS,
            starts,
            degrees,
            offsets,
            self._fanout,
            False,
            key,
            table,
            chosen,
        )
        anchor = np.repeat(np.arange(len(places)), np.diff(offsets))
        return Links(anchor, self._edges.targets[chosen].astype(np.int64), chosen)


def edges_of_links(
    edge_type: EdgeType,
    reverse_types: Mapping[EdgeType, EdgeType],
    anchor_type: str,
    target_type: str,
    pairs: np.ndarray,
) -> dict[EdgeType, np.ndarray]:
    """The message edges that repeat links, as (source, destination) pairs by edge type.

    Those of the type itself and of its reverse types; between nodes of one type in both directions,
    as both say that the two are linked.

    Args:
        reverse_types: edge types and their reverses; one direction of each is enough.
        pairs: int64 [2, num_links], (anchor, target) dense ids.
    """
    repeated = {edge_type}
    repeated.update(b for a, b in reverse_types.items() if a == edge_type)
    repeated.update(a for a, b in reverse_types.items() if b == edge_type)
    found = {}
    for source, relation, target in repeated:
        ways = []
        if (source, target) == (anchor_type, target_type):
            ways.append(pairs)
        if (source, target) == (target_type, anchor_type):
            ways.append(pairs[::-1])
        if ways:
            found[source, relation, target] = np.concatenate(ways, axis=1)
    return found
