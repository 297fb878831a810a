"""A layer on sampled neighbors is an unbiased estimate of the layer on all of them."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from torch import Tensor, nn

from raygnn.models import GCN, GIN, Encoder, GraphSAGE
from raygnn.sampling.blocks import Block

# In-neighbors of the two destinations, 0 and 1, of a graph of six nodes.
NEIGHBORS = ([1, 2, 3, 5], [0, 3, 4])
DEGREE = torch.tensor([4.0, 3.0, 1.0, 2.0, 5.0, 2.0])


def block_of(chosen: tuple[tuple[int, ...], ...]) -> Block:
    src = [node for nodes in chosen for node in nodes]
    dst = [i for i, nodes in enumerate(chosen) for _ in nodes]
    counts = torch.tensor([0, *map(len, chosen)])
    return Block(
        edge_index=torch.tensor([src, dst]),
        dst_ptr=counts.cumsum(0),
        num_src=6,
        num_dst=2,
        src_in_degree=DEGREE,
        dst_degree=DEGREE[:2],
    )


def linear(encoder: Encoder) -> Encoder:
    """The activation inside GIN's MLP would make the expectation another."""
    for layer in encoder.layers:
        if isinstance(getattr(layer, "nn", None), nn.Sequential):
            layer.nn = nn.Linear(3, 2)
    return encoder.double()


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("fanout", [1, 2, 3])
@pytest.mark.parametrize("name", ["gcn", "sage-mean", "sage-sum", "gin"])
def test_the_mean_over_all_samples_is_the_full_layer(
    name: str, fanout: int, with_replacement: bool
) -> None:
    encoder = {
        "gcn": lambda: GCN(3, 2, num_layers=1),
        "sage-mean": lambda: GraphSAGE(3, 2, num_layers=1),
        "sage-sum": lambda: GraphSAGE(3, 2, num_layers=1, aggr="sum"),
        "gin": lambda: GIN(3, 2, num_layers=1),
    }[name]()
    linear(encoder)
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def encode(*chosen: tuple[int, ...]) -> Tensor:
        return encoder(x, [block_of(chosen)])

    samples = [
        list(product(nodes, repeat=fanout) if with_replacement else combinations(nodes, fanout))
        for nodes in NEIGHBORS
    ]
    outputs = [encode(first, second) for first, second in product(*samples)]
    exact = encode(tuple(NEIGHBORS[0]), tuple(NEIGHBORS[1]))
    torch.testing.assert_close(torch.stack(outputs).mean(0), exact)
    if fanout < 3:
        assert not torch.allclose(outputs[0], exact)
