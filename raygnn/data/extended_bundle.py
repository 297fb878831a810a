"""A bundle with further nodes and edges behind its own, which lie in a bundle of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from raygnn.data.added_rows import Addition
from raygnn.data.bundle import Bundle
from raygnn.data.edge_types import EdgeType
from raygnn.data.id_map import IdMap


class ExtendedBundle(Bundle):
    """Counts and ids of a graph and of what was added to it; edges and columns are of stores.

    `raygnn.sampling.extended_stores` has the stores.

    Attributes:
        graph: what is extended.
        addition: what it is extended by.
    """

    def __init__(self, graph: Bundle, addition: Addition) -> None:
        super().__init__(graph.path, graph._record)
        self.graph, self.addition = graph, addition

    def __reduce__(self) -> Any:
        raise TypeError("an extended bundle stays in its process: its files go with the request")

    def num_nodes(self, node_type: str) -> int:
        """Number of nodes of a type, known and new."""
        return self.graph.num_nodes(node_type) + self.addition.num_new[node_type]

    def num_edges(self, edge_type: EdgeType) -> int:
        """Number of edges of a type, known and new."""
        return self.graph.num_edges(edge_type) + self.addition.bundle.num_edges(edge_type)

    def ids(self, node_type: str) -> pa.Array:
        """Original ids by dense id, copied."""
        new = self.addition.bundle.ids(node_type).slice(0, self.addition.num_new[node_type])
        return pa.concat_arrays([self.graph.ids(node_type), new])

    def take_ids(self, node_type: str, dense: np.ndarray) -> pa.Array:
        """Original ids of some nodes."""
        num_known = self.graph.num_nodes(node_type)
        is_new = dense >= num_known
        known = self.graph.take_ids(node_type, dense[~is_new])
        new = self.addition.bundle.take_ids(node_type, dense[is_new] - num_known)
        order = np.empty(len(dense), np.int64)
        order[np.concatenate([np.flatnonzero(~is_new), np.flatnonzero(is_new)])] = np.arange(
            len(dense)
        )
        return pa.concat_arrays([known, new]).take(pa.array(order))

    def id_map(self, node_type: str) -> IdMap:
        """Looks dense ids up by original ids."""
        return _ExtendedIds(
            self.graph.id_map(node_type),
            self.addition.bundle.id_map(node_type),
            self.addition.ids[node_type],
        )


class _ExtendedIds(IdMap):
    """Asks the known ids, then those of the rows.

    Args:
        places: dense ids of the nodes of `added` in the extended graph.
    """

    def __init__(self, known: IdMap, added: IdMap, places: np.ndarray) -> None:
        self.index = known.index
        self._known, self._added, self._places = known, added, places

    def lookup(self, ids: pa.Array | np.ndarray) -> np.ndarray:
        """See `IdMap`."""
        dense = self._known.lookup(ids)
        unknown = np.flatnonzero(dense < 0)
        if len(unknown):
            given = ids if isinstance(ids, pa.Array) else pa.array(ids)
            found = self._added.lookup(given.take(pa.array(unknown)))
            dense[unknown] = np.where(found < 0, -1, self._places[found])
        return dense
