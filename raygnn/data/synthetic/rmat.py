"""R-MAT graphs: skewed degrees at any size, for benchmarks and for tests of hubs.

Source: Chakrabarti et al., R-MAT: A Recursive Model for Graph Mining, SDM 2004.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from raygnn.data.convert.split_option import SPLIT_HELP, declare_split
from raygnn.data.synthetic.arguments import checked, field
from raygnn.data.synthetic.draws import draw_integers, draw_permutation
from raygnn.data.synthetic.planted import class_features
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows
from raygnn.errors import ConfigError

_LEAST_SHARE = (
    0.01  # a quadrant without edges could leave none to draw: all loops, or none in range
)


@checked
def rmat(
    num_nodes: Annotated[int, field("the number of nodes", low=2, high=2**31)] = 16384,
    num_edges: Annotated[int, field("the number of directed edges", low=0)] = 262144,
    a: Annotated[float, field("the share of the quadrant low to low", low=_LEAST_SHARE)] = 0.57,
    b: Annotated[float, field("the share of the quadrant low to high", low=_LEAST_SHARE)] = 0.19,
    c: Annotated[float, field("the share of the quadrant high to low", low=_LEAST_SHARE)] = 0.19,
    num_features: Annotated[
        int, field("the length of a feature row; 0 leaves features out", low=0)
    ] = 32,
    num_classes: Annotated[int, field("the number of labels; 0 leaves labels out", low=0)] = 8,
    noise: Annotated[
        float, field("the norm of the features' noise, as a multiple of their signal's", low=0)
    ] = 3.0,
    split: Annotated[str, field(SPLIT_HELP)] = "hash:0.6,0.2,0.2",
    split_seed: Annotated[int | None, field("the seed of the split (default: seed)")] = None,
    seed: Annotated[int, field("the seed")] = 0,
) -> GraphTables:
    """Directed edges with a power law of degrees, parallel ones included, without self-loops.

    Any number of nodes: draws outside it, and self-loops, are drawn again. Node ids are shuffled,
    so that an id says nothing of a degree. Labels are uniform and independent of the edges, and
    features show them as in planted_partition: there is something to learn, but not from neighbors.
    """
    if a + b + c > 1 - _LEAST_SHARE:
        raise ConfigError(
            f"data.synthetic.a={a!r} is invalid: a + b + c must leave {_LEAST_SHARE} or more to "
            f"the fourth quadrant, but is {a + b + c:g}. "
            "Set shares such as a: 0.57, b: 0.19, c: 0.19."
        )
    from raygnn.data.synthetic.rmat_kernel import draw_rmat_edges

    order = draw_permutation(seed, "node order", num_nodes)
    source, target = draw_rmat_edges(num_nodes, num_edges, a, b, c, seed)
    labels = draw_integers(seed, "labels", num_nodes, max(1, num_classes))
    features = {}
    if num_features:
        features["x"] = class_features(labels, max(1, num_classes), num_features, noise, seed)
    nodes = node_rows(np.arange(num_nodes), features, {"y": labels} if num_classes else {})
    split_labels = labels if num_classes else None
    nodes = declare_split(nodes, split, seed if split_seed is None else split_seed, split_labels)
    edges = edge_rows(order[source], order[target])
    return GraphTables({"node": nodes}, {("node", "to", "node"): edges})
