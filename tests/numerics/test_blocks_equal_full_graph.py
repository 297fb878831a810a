"""Blocks of a batch with all neighbors give what the full graph gives for the same nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from raygnn.models import GAT, GCN, GIN, MLP, Encoder, GATv2, GraphSAGE, Transformer
from raygnn.models.subgraph_module import SubgraphModule
from raygnn.sampling import NodeBatch
from raygnn.sampling.blocks import Block, blocks_of
from tests.batches import batch_of

ENCODERS: list[type[Encoder]] = [GCN, GraphSAGE, GAT, GATv2, GIN, Transformer, MLP]
NUM_LAYERS, CHANNELS = 3, 8
FEW = settings(max_examples=20)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Tensor, list[int]]:
    """Edges of a graph of 12 nodes, and seeds."""
    node = st.integers(0, 11)
    pairs = draw(st.lists(st.tuples(node, node), max_size=40, unique=True))
    seeds = draw(st.lists(node, min_size=1, max_size=4, unique=True))
    pairs = sorted((pair for pair in pairs if pair[0] != pair[1]), key=lambda pair: pair[1])
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T, seeds


def sample(x: Tensor, edge_index: Tensor, seeds: list[int]) -> NodeBatch:
    """What a sampler without limit gives, by plain loops over Python lists."""
    nodes, src, dst = list(seeds), [], []
    num_nodes, num_edges = [len(seeds)], []
    frontier = list(seeds)
    for _ in range(NUM_LAYERS):
        edges_before, found = len(src), []
        for node in frontier:
            for neighbor in edge_index[0, edge_index[1] == node].tolist():
                if neighbor not in nodes:
                    nodes.append(neighbor)
                    found.append(neighbor)
                src.append(nodes.index(neighbor))
                dst.append(nodes.index(node))
        frontier = found
        num_nodes.append(len(found))
        num_edges.append(len(src) - edges_before)
    degree = torch.bincount(edge_index[1], minlength=len(x)).float()[nodes]
    batch = batch_of(x[nodes], torch.tensor([src, dst], dtype=torch.long), len(seeds))
    (name, of_nodes), (edge_type, of_edges) = *batch.nodes.items(), *batch.edges.items()
    in_hops = replace(of_edges, num_sampled=num_edges, dst_degree=degree)
    return replace(
        batch, nodes={name: replace(of_nodes, num_sampled=num_nodes)}, edges={edge_type: in_hops}
    )


def block_of_all(edge_index: Tensor, num_nodes: int) -> Block:
    degree = torch.bincount(edge_index[1], minlength=num_nodes)
    return Block(
        edge_index=edge_index,
        dst_ptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
        num_src=num_nodes,
        num_dst=num_nodes,
        src_in_degree=degree.float(),
        dst_degree=degree.float(),
    )


@FEW
@given(graphs())
@pytest.mark.parametrize("jump", [None, "cat"])
@pytest.mark.parametrize("encoder_type", ENCODERS)
def test_a_batch_gives_the_rows_of_the_full_graph(
    encoder_type: type[Encoder], jump: str | None, graph: tuple[Tensor, list[int]]
) -> None:
    edge_index, seeds = graph
    torch.manual_seed(0)
    x = torch.randn(12, 5)
    encoder = encoder_type(5, 3, CHANNELS, NUM_LAYERS, jump=jump)
    batch = sample(x, edge_index, seeds)
    full = encoder(x, [block_of_all(edge_index, 12)] * NUM_LAYERS)
    sampled = encoder(batch.nodes["node"].columns["x"], blocks_of(batch))
    torch.testing.assert_close(sampled, full[seeds])
    gradients = [
        torch.autograd.grad(out.square().sum(), list(encoder.parameters()))
        for out in (sampled, full[seeds])
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


class TwoMeans(nn.Module):
    """A user's model: PyG's usual forward pass, as many layers as hops."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(5, 5) for _ in range(NUM_LAYERS)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return x


@FEW
@given(graphs())
def test_a_users_module_on_the_subgraph_gives_the_rows_of_the_full_graph(
    graph: tuple[Tensor, list[int]],
) -> None:
    edge_index, seeds = graph
    torch.manual_seed(0)
    x, model = torch.randn(12, 5), TwoMeans()
    batch = sample(x, edge_index, seeds)
    ((name, nodes),) = batch.nodes.items()
    found = SubgraphModule(model)(batch, {name: nodes.columns["x"]})[name]
    torch.testing.assert_close(found, model(x, edge_index)[seeds])
