from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from raygnn.errors import DataError
from raygnn.sampling import (
    HeteroBlock,
    LocalFeatureStore,
    LocalGraphStore,
    NeighborLoader,
    NeighborSampler,
    blocks_of,
)
from tests.unit.sampling.memory_bundle import NODE, random_bundle


def _batch(fanouts: list[int]) -> Data:
    bundle = random_bundle()
    graph = LocalGraphStore(bundle)
    loader = NeighborLoader(
        graph,
        LocalFeatureStore(bundle),
        np.arange(0, 200, 20),
        NODE,
        sampler=NeighborSampler(graph, fanouts),
        columns={"x": "x"},
        edge_columns={"weight": "edge_weight"},
        batch_size=10,
        split="train",
        seed=0,
        shuffle=False,
    )
    return loader.make(0, 0)


@pytest.mark.parametrize("fanouts", [[3], [3, 2], [4, -1, 2]])
def test_they_are_nested_prefixes(fanouts):
    batch = _batch(fanouts)
    blocks = blocks_of(batch)
    assert len(blocks) == len(fanouts)
    assert blocks[0].num_src == batch.num_nodes
    assert blocks[0].num_edges == batch.edge_index.shape[1]
    assert blocks[-1].num_dst == batch.batch_size
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        assert after is None or block.num_dst == after.num_src
        assert torch.equal(block.edge_index, batch.edge_index[:, : block.num_edges])
        assert int(block.edge_index[0].max()) < block.num_src
        assert int(block.edge_index[1].max()) < block.num_dst
        assert torch.equal(block.edge_weight, batch.edge_weight[: block.num_edges])
        assert block.edge_attr is None
        counts = torch.bincount(block.edge_index[1], minlength=block.num_dst)
        assert torch.equal(torch.diff(block.dst_ptr), counts)
        assert len(block.src_degree) == block.num_src
        assert torch.equal(block.dst_degree, block.src_degree[: block.num_dst])


def test_they_move_to_a_device():
    block = blocks_of(_batch([3, 2]))[0].to("meta")
    assert block.edge_index.device.type == block.dst_ptr.device.type == "meta"
    assert block.edge_weight is not None
    assert block.edge_weight.is_meta
    assert block.edge_attr is None
    both = HeteroBlock(blocks={("a", "to", "a"): block}, num_src={"a": 3}, num_dst={"a": 2})
    (moved,) = both.to("meta").blocks.values()
    assert moved.dst_degree.is_meta
    assert both.to("meta").num_dst == {"a": 2}


def test_batches_without_counts_have_none():
    with pytest.raises(DataError, match="its sampler does not count the nodes and edges"):
        blocks_of(Data(edge_index=torch.empty(2, 0, dtype=torch.int64)))
    with pytest.raises(DataError, match="several node or edge types are not offered"):
        blocks_of(HeteroData())
