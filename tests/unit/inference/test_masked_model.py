"""A model under masks of edges and rows: PyG's own masking where PyG has the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

from raygnn.inference.explain.masked_model import MaskedModel
from raygnn.models import (
    GAT,
    GCN,
    GIN,
    GINE,
    HGT,
    MLP,
    RGCN,
    GATv2,
    GraphSAGE,
    Hetero,
    LightGCN,
    SimpleHGN,
    Transformer,
)
from raygnn.models.graph_encoder import GraphEncoder
from raygnn.models.learned_rows import Embedding
from raygnn.models.predictors import NodePredictor
from raygnn.models.to_pyg import to_pyg
from raygnn.sampling.batch import EdgeRecord, HeteroBlock, NodeBatch, NodeRecord
from tests.batches import batch_of
from tests.errors import raises
from tests.unit.models.conftest import random_graph
from tests.unit.models.hetero_graph import EDGE_TYPES, IN_CHANNELS, NUM_NODES, random_hetero_graph

OURS = [GCN, GraphSAGE, GAT, GATv2, GIN, Transformer]


def masked(encoder: nn.Module, batch: NodeBatch) -> MaskedModel:
    target = batch.node_type
    model = NodePredictor(GraphEncoder(encoder), target).eval()
    return MaskedModel(
        model, batch, lambda rows: model.readout(rows[target][batch.seed_index]).float()
    )


def under(model: MaskedModel, mask: Tensor, x: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return model(model.x if x is None else x, mask)


def one_type(**options: Any) -> NodeBatch:
    """A batch of two whole blocks; its seed is node 0."""
    graph = random_graph(**options)
    edge_attr = torch.rand(graph.block.num_edges, 2)
    block = replace(graph.block, edge_attr=edge_attr)
    sizes = {"node": block.num_src}
    whole = HeteroBlock(blocks={("node", "to", "node"): block}, num_src=sizes, num_dst=sizes)
    batch = batch_of(graph.x, graph.edge_index, 1, edge_attr=edge_attr)
    return replace(batch, blocks=(whole, whole))


def several_types() -> NodeBatch:
    """The same of three node types, one without features; its seed is a user."""
    graph = random_hetero_graph()
    whole = graph.whole(2)
    nodes = {
        name: NodeRecord(
            n_id=torch.arange(size),
            num_seeds=size,
            num_sampled=None,
            columns={"x": graph.x[name]} if name in IN_CHANNELS else {},
        )
        for name, size in NUM_NODES.items()
    }
    edges = {
        edge_type: EdgeRecord(
            edge_index=block.edge_index,
            dst_ptr=block.dst_ptr,
            e_id=None,
            num_sampled=None,
            src_degree=block.src_degree,
            dst_degree=block.dst_degree,
            columns={},
        )
        for edge_type, block in whole[0].blocks.items()
    }
    seed = torch.tensor([3])
    return NodeBatch(
        index=0,
        input_id=seed,
        nodes=nodes,
        edges=edges,
        node_type="user",
        seed_index=seed,
        labels={},
        blocks=tuple(whole),
    )


@pytest.mark.parametrize("encoder_type", [GCN, GraphSAGE, GIN])
def test_a_masked_edge_is_that_of_pyg(encoder_type):
    batch = one_type()
    encoder = encoder_type(8, 3, 16, 2)
    theirs = to_pyg(GraphEncoder(encoder), encoder_type.__name__).eval()
    model = masked(encoder, batch)
    mask = torch.rand(model.edge_index.shape[1])
    set_masks(theirs, mask, model.edge_index, apply_sigmoid=False)
    expected = theirs(model.x, model.edge_index)[:1]
    torch.testing.assert_close(under(model, mask), expected)
    assert not torch.allclose(under(model, torch.ones_like(mask)), expected)


@pytest.mark.parametrize("self_edges", [False, True])
@pytest.mark.parametrize("encoder_type", [*OURS, GINE])
def test_a_mask_of_ones_changes_nothing(encoder_type, self_edges):
    batch = one_type(self_edges=self_edges)
    options = {"edge_dim": 2} if encoder_type in (GAT, GATv2, GINE, Transformer) else {}
    encoder = encoder_type(8, 3, 16, 2, jump="cat", residual=True, **options)
    model = masked(encoder, batch)
    plain = NodePredictor(GraphEncoder(encoder), "node").eval()(batch)[:1]
    torch.testing.assert_close(under(model, torch.ones(model.edge_index.shape[1])), plain)
    torch.testing.assert_close(model(model.x), plain)


@pytest.mark.parametrize(
    ("encoder_type", "options"),
    [(Hetero, {"conv": "GraphSAGE"}), (Hetero, {"conv": "GAT", "num_heads": 2})]
    + [(kind, {"num_heads": 2}) for kind in (HGT, SimpleHGN)]
    + [(RGCN, {}), (LightGCN, {})],
)
def test_edges_of_several_types_have_masks(encoder_type, options):
    batch = several_types()
    given = (IN_CHANNELS, 8) if encoder_type is LightGCN else (IN_CHANNELS, 3, 8)
    options = {"num_layers": 2, **options}
    encoder = encoder_type(*given, edge_types=EDGE_TYPES, num_nodes=NUM_NODES, **options)
    model = masked(encoder, batch)
    ones = torch.ones(model.edge_index.shape[1])
    plain = NodePredictor(GraphEncoder(encoder), "user").eval()(batch)[3:4]
    torch.testing.assert_close(under(model, ones), plain)
    # Edges that lead to a neighbor of the seed matter, and those of no use do not.
    src, dst = model.edge_index
    seed = model.rows["user"].start + 3
    near = {seed, *src[dst == seed].tolist()}
    far = torch.tensor([int(i) not in near for i in dst])
    if far.any():
        torch.testing.assert_close(under(model, ones.masked_fill(far, 0)), plain)
    assert not torch.allclose(under(model, ones.masked_fill(dst == seed, 0)), plain)
    assert set(model.elements) == (set() if encoder_type is LightGCN else set(IN_CHANNELS))


def test_modules_of_pyg_are_masked_by_pyg():
    batch = one_type()
    module = pyg.SAGEConv(8, 3)
    model = masked(module, batch)
    mask = torch.rand(model.edge_index.shape[1])
    set_masks(module, mask, model.edge_index, apply_sigmoid=False)
    expected = module(model.x, model.edge_index)[:1]
    clear_masks(module)
    torch.testing.assert_close(under(model, mask), expected)


def test_elements_of_a_type_are_masked_alone():
    batch = several_types()
    encoder = Hetero(IN_CHANNELS, 3, 8, edge_types=EDGE_TYPES, num_nodes=NUM_NODES)
    model = masked(encoder, batch)
    ones = torch.ones(model.edge_index.shape[1])
    x = model.x.clone()
    x[:, model.elements["item"].start] = 0
    changed = batch.nodes["item"].columns["x"].clone()
    changed[:, 0] = 0
    item = replace(batch.nodes["item"], columns={"x": changed})
    other = masked(encoder, replace(batch, nodes={**batch.nodes, "item": item}))
    torch.testing.assert_close(under(model, ones, x), under(other, ones))


def test_nothing_of_the_masks_stays():
    batch = one_type()
    encoder = GraphSAGE(8, 3, 16, 2)
    model = masked(encoder, batch)
    mask = torch.rand(model.edge_index.shape[1], requires_grad=True)
    (slopes,) = torch.autograd.grad(model(model.x, mask).sum(), mask)
    assert slopes.any()
    assert not any(layer._forward_pre_hooks for layer in encoder.layers)


def test_what_reads_nothing_that_can_be_masked_is_refused():
    assert not masked(MLP(8, 3, 16, 2), one_type()).masks_edges
    rows = Embedding(IN_CHANNELS, 8, edge_types=EDGE_TYPES, num_nodes=NUM_NODES)
    with raises("explain-nothing-read"):
        masked(rows, several_types())
