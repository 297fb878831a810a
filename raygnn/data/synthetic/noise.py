"""Links in which nothing can be learnt: metrics above chance mean that the evaluation leaks."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import pyarrow as pa

from raygnn.data.edge_types import EdgeType
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import draw_integers, draw_normal
from raygnn.data.tables.graph_tables import EdgeRows, GraphTables, NodeRows, edge_rows, node_rows

_FIRST_TIME_S = 1_700_000_000  # Unix time of the earliest link possible (November 2023)
_YEAR_S = 365 * 24 * 3600


@checked
def noise(
    num_nodes: Annotated[int, field("the number of nodes that links start from", low=2)] = 2000,
    num_targets: Annotated[
        int, field("the number of nodes of a second type, that links lead to; 0: one type", low=0)
    ] = 0,
    num_links: Annotated[int, field("the number of links of each relation", low=0)] = 20_000,
    num_relations: Annotated[int, field("the number of relations", low=1)] = 1,
    num_hard_negatives: Annotated[
        int, field("the number of hard negatives of each relation, as label edges", low=0)
    ] = 0,
    num_features: Annotated[int, field("the length of a feature row", low=1)] = 8,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Random links with random timestamps over one year between nodes with random features.

    Edge types are (node, links_0, node) and so on, with a second type (node, links_0, target). Ends
    and timestamps are drawn uniformly, so that links may be parallel; no node is linked to itself.
    Ids are strings.
    """
    sizes = {"node": num_nodes} | ({"target": num_targets} if num_targets else {})
    nodes = {name: _nodes(name, size, num_features, seed) for name, size in sizes.items()}
    target = "target" if num_targets else "node"
    edges: dict[EdgeType, EdgeRows] = {}
    labels: dict[tuple[EdgeType, str], EdgeRows] = {}
    for relation in range(num_relations):
        edge_type = ("node", f"links_{relation}", target)
        edges[edge_type] = _pairs(nodes, edge_type, num_links, f"links {relation}", seed)
        if num_hard_negatives:
            drawn = _pairs(nodes, edge_type, num_hard_negatives, f"negatives {relation}", seed)
            labels[edge_type, "negative"] = drawn
    return GraphTables(nodes, edges, label_edges=labels)


def _nodes(name: str, size: int, num_features: int, seed: int) -> NodeRows:
    ids = np.array([f"{name}-{number}" for number in range(size)])
    return node_rows(ids, {"x": draw_normal(seed, f"{name} features", (size, num_features))})


def _pairs(
    nodes: dict[str, NodeRows], edge_type: EdgeType, num: int, stream: str, seed: int
) -> EdgeRows:
    first, _, second = edge_type
    sizes = [len(nodes[name].table) for name in (first, second)]
    source = draw_integers(seed, f"{stream} sources", num, sizes[0])
    if first == second:
        step = 1 + draw_integers(seed, f"{stream} targets", num, sizes[1] - 1)
        target = (source + step) % sizes[1]
    else:
        target = draw_integers(seed, f"{stream} targets", num, sizes[1])
    seconds = _FIRST_TIME_S + draw_integers(seed, f"{stream} times", num, _YEAR_S)
    return edge_rows(
        _ids(nodes[first], source),
        _ids(nodes[second], target),
        time=seconds.astype("datetime64[s]"),
    )


def _ids(rows: NodeRows, chosen: np.ndarray) -> pa.Array:
    return rows.table.column(rows.id).combine_chunks().take(pa.array(chosen))
