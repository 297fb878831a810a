"""Sampling from a bundle that ingest built: mapped files, real columns, and its pickles."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from raygnn.data.bundle import Bundle
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.synthetic import synthetic_tables
from raygnn.data.tables.graph_tables import write_tables
from raygnn.sampling import LocalFeatureStore, LocalGraphStore, NeighborLoader, NeighborSampler
from tests.batches import check_ids


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder: Path = tmp_path_factory.mktemp("graph")
    tables = synthetic_tables(
        "planted_partition", num_nodes=300, num_classes=3, avg_degree=6, num_features=5
    )
    uri = write_tables(tables, str(folder / "tables"), num_shards=2)
    return ingest(uri, cache_dir=folder / "cache")


@pytest.mark.parametrize("direction", ["in", "out"])
def test_batches_hold_rows_and_edges_of_the_bundle(bundle, direction):
    (node_type,), (edge_type,) = bundle.node_types, bundle.edge_types
    graph = LocalGraphStore(bundle, direction)
    sampler = NeighborSampler(graph, [4, 3])
    loader = NeighborLoader(
        *pickle.loads(pickle.dumps((graph, LocalFeatureStore(bundle)))),
        np.arange(300),
        node_type,
        sampler=pickle.loads(pickle.dumps(sampler)),
        columns={"x": "x", "y": "y"},
        batch_size=64,
        split="train",
        seed=0,
        shuffle=True,
        num_threads=2,
    )
    csc = bundle.csc(edge_type)
    target = np.repeat(np.arange(300), np.diff(csc.indptr))
    degrees = np.diff(csc.indptr if direction == "in" else bundle.csr(edge_type).indptr)
    for batch in loader.iterate(0):
        (nodes,), (edges,) = batch.nodes.values(), batch.edges.values()
        check_ids(batch)
        assert np.array_equal(
            nodes.columns["x"].numpy(),
            bundle.column(node_type, "x")[nodes.n_id],
        )
        assert np.array_equal(batch.y.numpy(), bundle.column(node_type, "y")[batch.input_id])
        assert np.array_equal(edges.dst_degree.numpy(), degrees[nodes.n_id])
        row, col = nodes.n_id[edges.edge_index].numpy()
        ends = (csc.indices[edges.e_id], target[edges.e_id])
        assert np.array_equal(
            np.stack([row, col]), np.stack(ends if direction == "in" else ends[::-1])
        )
        assert torch.equal(torch.sort(edges.edge_index[1]).values, edges.edge_index[1])
