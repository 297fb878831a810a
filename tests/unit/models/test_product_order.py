"""Weights before or after the sum over neighbors: the cheaper order, and the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_geometric.nn import SAGEConv

from raygnn.models import sage
from raygnn.models.sage import BlockSAGEConv
from raygnn.models.segment import transform_first
from raygnn.sampling.blocks import Block


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("aggr", ["mean", "sum"])
@pytest.mark.parametrize("order", [True, False])
def test_both_orders_are_pygs_layer(
    make_graph: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    order: bool,
    aggr: str,
    bias: bool,
) -> None:
    graph = make_graph()
    taken = []
    monkeypatch.setattr(sage, "transform_first", lambda *_: taken.append(order) or order)
    ours = BlockSAGEConv(8, 3, aggr=aggr, bias=bias)
    plain = SAGEConv(8, 3, aggr=aggr, bias=bias)
    plain.load_state_dict(ours.state_dict())
    inputs = [graph.x.clone().requires_grad_() for _ in range(2)]
    rows = ours(inputs[0], graph.block), plain(inputs[1], graph.edge_index)
    assert taken == [order]
    torch.testing.assert_close(*rows)
    for out in rows:
        (out * torch.arange(3)).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    for mine, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def _block(num_src: int, num_dst: int, num_edges: int) -> Block:
    none = torch.empty(0)
    return Block(
        edge_index=torch.empty(2, num_edges, dtype=torch.int64),
        num_src=num_src,
        num_dst=num_dst,
        dst_ptr=none,
        src_degree=none,
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
