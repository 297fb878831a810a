from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.sampling import HeteroBlock, NodeBatch, blocks_of, hetero_blocks_of
from tests.batches import node_loader
from tests.small_graph import EDGE, NODE, SmallGraph, random_graph

BUYS, SOLD_BY, KNOWS = ("user", "buys", "item"), ("item", "by", "user"), ("user", "knows", "user")


def _batch(fanouts: list[int]) -> NodeBatch:
    changes = {"seeds": np.arange(0, 200, 20), "batch_size": 10}
    columns = {"weight": "edge_weight"}
    return node_loader(random_graph(), fanouts, edge_columns=columns, **changes).make(0, 0)


@pytest.mark.parametrize("fanouts", [[3], [3, 2], [4, -1, 2]])
def test_they_are_nested_prefixes(fanouts):
    batch = _batch(fanouts)
    nodes, edges = batch.nodes[NODE], batch.edges[EDGE]
    blocks = blocks_of(batch)
    assert len(blocks) == len(fanouts)
    assert blocks[0].num_src == len(nodes.n_id)
    assert blocks[0].num_edges == edges.edge_index.shape[1]
    assert blocks[-1].num_dst == nodes.num_seeds
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        assert after is None or block.num_dst == after.num_src
        assert torch.equal(block.edge_index, edges.edge_index[:, : block.num_edges])
        assert int(block.edge_index[0].max()) < block.num_src
        assert int(block.edge_index[1].max()) < block.num_dst
        assert torch.equal(block.edge_weight, edges.columns["edge_weight"][: block.num_edges])
        assert block.edge_attr is None
        counts = torch.bincount(block.edge_index[1], minlength=block.num_dst)
        assert torch.equal(torch.diff(block.dst_ptr), counts)
        assert len(block.src_in_degree) == block.num_src
        assert torch.equal(block.dst_degree, block.src_in_degree[: block.num_dst])
        assert block.src_degree is None


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


def test_those_of_several_types():
    rng = np.random.default_rng(0)
    edges = {
        KNOWS: (rng.integers(0, 60, 300), rng.integers(0, 60, 300)),
        BUYS: (rng.integers(0, 60, 200), rng.integers(0, 20, 200)),
        SOLD_BY: (rng.integers(0, 20, 90), rng.integers(0, 60, 90)),
    }
    columns = {
        "user": {"x": np.arange(60, dtype=np.float32)[:, None]},
        BUYS: {"price": np.arange(200.0)[:, None], "weight": np.arange(200, dtype=np.float32)},
    }
    small = SmallGraph({"user": 60, "item": 20}, edges, stored=columns)
    loader = node_loader(
        small,
        {KNOWS: [3, 0, 2], BUYS: [4, 2, 1], SOLD_BY: [0, 2, -1]},
        seeds=np.arange(0, 20, 3),
        node_type="item",
        edge_columns={"price": "edge_attr", "weight": "edge_weight"},
        src_degrees=True,
    )
    batch = loader.make(0, 0)
    assert "x" not in batch.nodes["item"].columns
    blocks = hetero_blocks_of(batch)
    assert len(blocks) == 3
    assert blocks[-1].num_dst == {"item": 7, "user": 0}
    assert blocks[0].num_src == {t: len(batch.nodes[t].n_id) for t in ("item", "user")}
    num_edges = dict.fromkeys(batch.edges, 0)
    for block in reversed(blocks):
        for edge_type, of_type in block.blocks.items():
            source, _, target = edge_type
            row, col = of_type.edge_index
            assert (of_type.num_src, of_type.num_dst) == (
                block.num_src[source],
                block.num_dst[target],
            )
            assert (row < of_type.num_src).all()
            counts = torch.bincount(col, minlength=of_type.num_dst)
            assert torch.equal(torch.diff(of_type.dst_ptr), counts)
            assert of_type.num_edges >= num_edges[edge_type]
            num_edges[edge_type] = of_type.num_edges
            ends = edges[edge_type]
            degrees = [
                (of_type.src_degree, source, ends[0], of_type.num_src),
                (of_type.dst_degree, target, ends[1], of_type.num_dst),
            ]
            if source == target:
                degrees.append((of_type.src_in_degree, source, ends[1], of_type.num_src))
            else:
                assert of_type.src_in_degree is None
            for degree, node_type, of_end, size in degrees:
                nodes = batch.nodes[node_type].n_id[:size].numpy()
                expected = np.bincount(of_end, minlength=small.nodes[node_type])[nodes]
                assert degree.tolist() == expected.tolist()
            e_id = batch.edges[edge_type].e_id[: of_type.num_edges]
            if edge_type == BUYS:
                assert torch.equal(of_type.edge_weight, e_id.float())
                assert torch.equal(of_type.edge_attr[:, 0], e_id.double())
            else:
                assert of_type.edge_weight is of_type.edge_attr is None
    assert all(num_edges[t] == batch.edges[t].edge_index.shape[1] for t in batch.edges)
