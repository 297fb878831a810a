"""Links of the seeds of a batch, and the edges that repeat them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from raygnn.data.edge_types import EdgeType
from raygnn.sampling import pick as kernels
from raygnn.sampling.rng import RNG_VERSION, chain_key, text_key

if TYPE_CHECKING:
    from raygnn.data.links.supervision import SupervisionEdges

#: Unit of `batch_size` and of the order of an epoch.
SeedKind = Literal["links", "anchors"]


class RowDraws:
    """Draws up to `limit` links per anchor without replacement in each epoch; None takes all."""

    def __init__(self, indptr: np.ndarray, limit: int | None, *key: int) -> None:
        self._indptr = indptr
        self._fanout = kernels.ALL if limit is None else limit
        self._key = (RNG_VERSION, *key)

    def draw(self, rows: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The links of some anchors; each anchor's are a pure function of the epoch.

        Args:
            rows: int64 [num_rows], positions of anchors in the supervision edges.
        Returns:
            int64 positions of links, anchor by anchor, and int64 [num_rows + 1], start of each
            anchor's.
        """
        starts, degrees = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        offsets = np.empty(len(rows) + 1, np.int64)
        kernels.find_rows(self._indptr, rows, self._fanout, False, starts, degrees, offsets)
        links = np.empty(offsets[-1], np.int64)
        table = np.zeros(kernels.membership_table(self._fanout, False), np.int64)
        draws = (self._fanout, False, np.uint64(chain_key(*self._key, epoch)))
        kernels.pick_positions(
            (rows, kernels.NO_SALTS, starts, degrees, offsets), draws, table, links
        )
        return links, offsets


class LinkSeeds:
    """The seeds of an epoch: links, or anchors with at most `limit` of their links.

    An epoch's links of an anchor are drawn anew, but their number is constant, so the seeds of all
    epochs can be numbered.
    """

    def __init__(
        self, edges: SupervisionEdges, kind: SeedKind, limit: int | None, seed: int, split: str
    ) -> None:
        self._is_anchor = kind == "anchors"
        self._draws = RowDraws(edges.indptr, limit, seed, text_key(split), text_key("labels"))
        self._ptr = edges.indptr
        if limit is not None:
            num_links = np.minimum(np.diff(edges.indptr), limit)
            self._ptr = np.concatenate([[0], np.cumsum(num_links)])
        self._has_limit = limit is not None
        self.num_seeds = edges.num_anchors if self._is_anchor else int(self._ptr[-1])

    def links(self, places: np.ndarray, epoch: int) -> np.ndarray:
        """int64, positions of the links of the seeds at `places`."""
        if self._is_anchor:
            return self._draws.draw(places, epoch)[0]
        if not self._has_limit:
            return places
        rows = np.searchsorted(self._ptr, places, side="right") - 1
        distinct, which = np.unique(rows, return_inverse=True)
        links, offsets = self._draws.draw(distinct, epoch)
        return links[offsets[which] + places - self._ptr[rows]]


def edges_of_links(
    edge_type: EdgeType,
    reverse_types: Mapping[EdgeType, EdgeType],
    anchor_type: str,
    target_type: str,
    pairs: np.ndarray,
) -> dict[EdgeType, np.ndarray]:
    """Message edges that repeat links, as (source, destination) pairs by edge type.

    These are edges of the type and of its reverse types, and of both directions between nodes of
    one type, because both mean that the two are linked.

    Args:
        reverse_types: edge types and their reverses; one direction of each is enough.
        pairs: int64 [2, num_links], (anchor, target) dense ids.
    """
    repeated = [edge_type]
    repeated += (b for a, b in reverse_types.items() if a == edge_type)
    repeated += (a for a, b in reverse_types.items() if b == edge_type)
    edges = {}
    for source, relation, target in dict.fromkeys(repeated):  # not of a set: its order is random
        ways = []
        if (source, target) == (anchor_type, target_type):
            ways.append(pairs)
        if (source, target) == (target_type, anchor_type):
            ways.append(pairs[::-1])
        if ways:
            edges[source, relation, target] = np.concatenate(ways, axis=1)
    return edges
