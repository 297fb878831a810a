"""Parts by METIS, of graphs that fit into memory many times over.

Source: Karypis and Kumar, A Fast and High Quality Multilevel Scheme for Partitioning Irregular
Graphs, SIAM Journal on Scientific Computing 20, 1998.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from raygnn.data.paging import memory_bytes, outgrows_memory
from raygnn.errors import ConfigError, ResourceError

# Measured on random graphs, which coarsen worst; docs/decisions.md has the command.
_BYTES_PER_NEIGHBOR = 120
_BYTES_PER_NODE = 100


def check_metis() -> None:
    """Checks that METIS is installed.

    Raises:
        ConfigError: it is not.
    """
    try:
        import pymetis  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"method='metis' cannot be used: {error}. Install `pip install 'raygnn[metis]'`, or "
            "set ldg.",
            id="partition-metis-missing",
        ) from error


def metis_parts(indptr: np.ndarray, neighbors: np.ndarray, num_parts: int) -> np.ndarray:
    """The part of each node, so that few edges are cut and parts have as many nodes.

    Args:
        indptr: int64 [num_nodes + 1], where the neighbors of each node begin.
        neighbors: [2 num_edges], both ends of each edge; several edges of a pair count as many.
        num_parts: at least 1.
    Returns:
        int32 [num_nodes].
    Raises:
        ResourceError: METIS would need more memory than this machine has.
    """
    import pymetis

    num_nodes = len(indptr) - 1
    needed = _BYTES_PER_NEIGHBOR * len(neighbors) + _BYTES_PER_NODE * num_nodes
    if outgrows_memory(needed):
        raise ResourceError(
            f"method='metis' cannot be used: with {num_nodes:,} nodes and {len(neighbors) // 2:,} "
            f"edges it needs up to {needed / 2**30:,.1f} GiB of memory, and this machine has "
            f"{memory_bytes() / 2**30:,.1f} GiB. Set ldg.",
            id="partition-metis-memory",
        )
    if num_parts == 1:
        return np.zeros(num_nodes, np.int32)
    ones = np.ones(len(neighbors), np.int64)
    rows = (ones, neighbors, indptr)
    graph = sparse.csr_array(rows, shape=(num_nodes, num_nodes), copy=True)  # changed in place
    graph.sum_duplicates()
    graph.setdiag(0)  # an edge to itself is never cut
    graph.eliminate_zeros()
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(np.int64), graph.indices.astype(np.int64))
    _, parts = pymetis.part_graph(num_parts, adjacency=adjacency, eweights=graph.data)
    return np.asarray(parts, np.int32)
