"""Batches of several node types, as the loader gives them, against the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from raygnn.data.edge_types import EdgeType
from raygnn.models import HGT, RGCN, Hetero, HeteroEncoder, LightGCN, SimpleHGN
from raygnn.models.exact import ExactOptions, InEdges, exact_inference
from raygnn.sampling import (
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    hetero_blocks_of,
)
from tests.small_graph import SmallGraph

NUM_NODES = {"user": 40, "item": 30, "tag": 6}
EDGE_TYPES: list[EdgeType] = [
    ("user", "buys", "item"),
    ("item", "rev_buys", "user"),
    ("user", "knows", "user"),
    ("tag", "marks", "item"),
]


def small_graph() -> SmallGraph:
    """Tags have no features, and no edge leads to them."""
    rng = np.random.default_rng(0)
    edges: dict[EdgeType, tuple[np.ndarray, np.ndarray]] = {
        edge_type: (
            rng.integers(0, NUM_NODES[edge_type[0]], 50),
            rng.integers(0, NUM_NODES[edge_type[2]], 50),
        )
        for edge_type in EDGE_TYPES
    }
    edges["item", "rev_buys", "user"] = edges["user", "buys", "item"][::-1]
    stored = {
        "user": {"x": rng.normal(size=(40, 5)).astype(np.float32)},
        "item": {"x": rng.normal(size=(30, 7)).astype(np.float32)},
    }
    return SmallGraph(NUM_NODES, edges, stored=stored)


def graph_of_one_type() -> SmallGraph:
    """Its edges have one direction, so that out-degrees are not in-degrees."""
    rng = np.random.default_rng(0)
    edges = {("node", "to", "node"): (rng.integers(0, 40, 90), rng.integers(0, 20, 90))}
    x = rng.normal(size=(40, 5)).astype(np.float32)
    return SmallGraph({"node": 40}, edges, stored={"node": {"x": x}})


@pytest.mark.parametrize(
    "build",
    [
        partial(HGT, num_heads=2),
        RGCN,
        partial(SimpleHGN, num_heads=2),
        Hetero,
        partial(Hetero, conv="GATv2", num_heads=2),
        LightGCN,
    ],
)
@pytest.mark.parametrize("target", ["user", "item", "node"])
def test_a_batch_with_all_neighbors_gives_exact_rows(
    build: Callable[..., HeteroEncoder], target: str
) -> None:
    small = graph_of_one_type() if target == "node" else small_graph()
    graph = LocalGraphStore(small.bundle)
    num_nodes = {name: graph.num_nodes(name) for name in graph.node_types}
    widths = small.bundle.feature_widths("x")
    torch.manual_seed(0)
    encoder = build(widths, 8, num_layers=2, edge_types=graph.edge_types, num_nodes=num_nodes)
    loader = NeighborLoader(
        graph,
        LocalFeatureStore(small.bundle),
        np.arange(0, num_nodes[target], 5),
        target,
        sampler=NeighborSampler(graph, [-1, -1]),
        columns={"x": "x"},
        batch_size=4,
        split="val",
        seed=0,
        shuffle=False,
        src_degrees=encoder.reads_src_degree,
    )
    in_edges = {}
    for edge_type in graph.edge_types:
        csc = small.bundle.csc(edge_type)
        in_edges[edge_type] = InEdges(indptr=csc.indptr, indices=csc.indices)
    exact = exact_inference(
        encoder,
        lambda t, ids: small.bundle.column(t, "x")[ids],
        in_edges,
        num_nodes,
        options=ExactOptions(chunk_size=20),
    )
    encoder.eval()
    with loader:
        for batch in loader.iterate(0):
            rows = encoder(encoder.inputs_of(batch), hetero_blocks_of(batch))[target]
            torch.testing.assert_close(rows, exact[target][batch.input_id])
