"""Weights before or after the sum over neighbors: the cheaper order, and the same rows."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import GATConv, SAGEConv

from raygnn.models import attention_encoders, segment
from raygnn.models.attention_encoders import BlockGATConv
from raygnn.models.convolutions import BlockSAGEConv
from raygnn.models.segment import transform_first
from raygnn.sampling.blocks import Block
from tests.unit.models.conftest import assert_same_with_grads, random_graph


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("aggr", ["mean", "sum"])
@pytest.mark.parametrize("order", [True, False])
def test_both_orders_are_pygs_layer(
    monkeypatch: pytest.MonkeyPatch, order: bool, aggr: str, bias: bool
) -> None:
    graph = random_graph()
    taken = []
    monkeypatch.setattr(segment, "transform_first", lambda *_: taken.append(order) or order)
    ours = BlockSAGEConv(8, 3, aggr=aggr, bias=bias)
    plain = SAGEConv(8, 3, aggr=aggr, bias=bias)
    plain.load_state_dict(ours.state_dict())
    x = graph.x.clone().requires_grad_()
    found, expected = ours(x, graph.block), plain(x, graph.edge_index)
    assert taken == [order]
    inputs = [[x, *layer.parameters()] for layer in (ours, plain)]
    assert_same_with_grads(found, expected, *inputs)


@pytest.mark.parametrize("order", [True, False])
@pytest.mark.parametrize("between_types", [False, True])
def test_both_orders_of_attention_are_pygs_layer(
    monkeypatch: pytest.MonkeyPatch, order: bool, between_types: bool
) -> None:
    torch.manual_seed(0)
    graph = random_graph()
    taken = []
    monkeypatch.setattr(
        attention_encoders, "transform_first", lambda *_: taken.append(order) or order
    )
    widths = (8, 6) if between_types else 8
    ours = BlockGATConv(widths, 4, heads=3, add_self_loops=not between_types)
    plain = GATConv(widths, 4, heads=3, add_self_loops=not between_types)
    plain.load_state_dict(ours.state_dict())
    rows = [graph.x, *([torch.randn(graph.block.num_dst, 6)] if between_types else [])]
    rows = [x.clone().requires_grad_() for x in rows]
    found = ours(rows[0], graph.block, *rows[1:])
    assert taken == [order]
    expected = plain(tuple(rows) if between_types else rows[0], graph.edge_index)
    inputs = [[*rows, *layer.parameters()] for layer in (ours, plain)]
    assert_same_with_grads(found, expected, *inputs, rtol=1e-4, atol=1e-5)


def _block(num_src: int, num_dst: int, num_edges: int) -> Block:
    none = torch.empty(0)
    return Block(
        edge_index=torch.empty(2, num_edges, dtype=torch.int64),
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=none,
        src_in_degree=none,
        dst_degree=none,
    )


def test_the_order_is_the_one_that_was_faster() -> None:
    """Blocks of Facebook pages, 4,714 features, as measured; see docs/decisions.md."""
    for size, out_channels, is_first in [
        ((11_830, 5_596, 28_000), 16, True),
        ((11_830, 5_596, 28_000), 64, True),
        ((5_000, 1_653, 8_225), 16, True),
        ((5_000, 1_653, 8_225), 64, False),
        ((19_292, 9_178, 252_364), 64, True),
        ((22_470, 22_470, 341_646), 64, True),
    ]:
        assert transform_first(_block(*size), 4714, out_channels) == is_first
    assert not transform_first(_block(71_000, 25_600, 110_000), 128, 256)
