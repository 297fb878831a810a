"""All in-edges of an edge type, as exact encoding reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from raygnn.device_memory import copied
from raygnn.sampling.growing_subgraph import LocalIds
from raygnn.sampling.protocols import EdgeValues


@dataclass(frozen=True, kw_only=True)
class InEdges:
    """All in-edges of one edge type, as a CSC matrix by destination.

    Attributes:
        indptr: int64 [num_dst_nodes + 1].
        indices: int32 or int64 [num_edges], sources.
        src_degree: [num_src_nodes], out-degrees for encoders with `reads_src_degree`; None counts
            `indices`.
        dst_degree: [num_dst_nodes], in-degrees; None counts `indptr`.
        edge_weight: [num_edges] or None, for encoders that read it.
        edge_attr: [num_edges, edge_dim] or None, for encoders that read it.
    """

    indptr: np.ndarray
    indices: EdgeValues
    src_degree: np.ndarray | None = None
    dst_degree: np.ndarray | None = None
    edge_weight: EdgeValues | None = None
    edge_attr: EdgeValues | None = None

    def edge_index(self, first: int, last: int, local: LocalIds) -> np.ndarray:
        """Edges into a range of destinations, int64 [2, num_edges]. `local` numbers new sources."""
        start, stop = int(self.indptr[first]), int(self.indptr[last])
        edge_index = np.empty((2, stop - start), np.int64)
        local.add(np.asarray(self.indices[start:stop]), edge_index[0])
        edge_index[1] = np.repeat(np.arange(last - first), np.diff(self.indptr[first : last + 1]))
        return edge_index

    def columns(self, first: int, last: int, device: torch.device) -> dict[str, Any]:
        edges = slice(int(self.indptr[first]), int(self.indptr[last]))
        columns = {"edge_weight": self.edge_weight, "edge_attr": self.edge_attr}
        return {
            name: copied(torch.tensor(rows[edges]), device)
            for name, rows in columns.items()
            if rows is not None
        }
