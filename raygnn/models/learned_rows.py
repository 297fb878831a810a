"""Encoders without features: LightGCN smooths learned rows, Embedding is a table, EASE has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from raygnn.data.edge_types import EdgeType
from raygnn.models.encoder import Share, TypeRows
from raygnn.models.hetero_encoder import HeteroEncoder, block_of
from raygnn.models.segment import Adjacency, inverse_sqrt, scale_sampled, segment_sum
from raygnn.sampling.blocks import HeteroBlock


class LightGCNLayer(nn.Module):
    """sum_j x_j / sqrt(d_i d_j) over the in-neighbors j of i of all types together; no parameters.

    d is the degree in the whole graph, over all edge types: in-degree of the receiver, out-degree
    of the sender. Add reverse edge types so that these are equal. A sum over sampled neighbors is
    scaled by (in-degree / number sampled), an unbiased estimate of the sum over all. An edge
    weight, if present, multiplies the neighbor's row; degrees stay counts.
    """

    def __init__(self, edge_types: Sequence[EdgeType]) -> None:
        super().__init__()
        self.edge_types = list(edge_types)

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> TypeRows:
        any_rows = next(iter(x_src.values()))
        blocks = {t: block_of(block, t, any_rows) for t in self.edge_types}
        of_source = {name: any_rows.new_zeros(len(x)).float() for name, x in x_src.items()}
        of_target = {name: any_rows.new_zeros(block.num_dst.get(name, 0)).float() for name in x_src}
        for (source, _, target), of_type in blocks.items():
            assert of_type.src_degree is not None, "build the loader with src_degrees=True"
            of_source[source] = of_source[source] + of_type.src_degree
            of_target[target] = of_target[target] + of_type.dst_degree
        # A node without edges sends and receives nothing.
        scaled = {n: x * inverse_sqrt(of_source[n].clamp(min=1), x.dtype) for n, x in x_src.items()}
        out = {name: x.new_zeros(len(of_target[name]), x.shape[1]) for name, x in x_src.items()}
        for (source, _, target), of_type in blocks.items():
            if of_type.num_edges:
                summed = segment_sum(scaled[source], Adjacency.of(of_type), of_type.edge_weight)
                out[target] = out[target] + scale_sampled(summed, of_type)
        return {n: x * inverse_sqrt(of_target[n].clamp(min=1), x.dtype) for n, x in out.items()}


class LightGCN(HeteroEncoder):
    """LightGCN, arXiv:2002.02126.

    Every node has a learned row of width `out_channels`; features are not read. The output is the
    mean of these rows and of all layers' outputs. With all edges in the blocks of a step, this is
    full-graph propagation. As in the paper, messages include the links of a training batch.

    Args:
        in_channels: not read; for a uniform constructor.
        out_channels: width of the rows and of the output.
        num_layers: number of propagation steps.
        edge_types: message types.
        num_nodes: nodes in the whole graph, of every node type.
        normalize_output: scales each output row to unit L2 norm.
        sparse_embeddings: gradients of learned rows are sparse, for SparseAdam, Adagrad or
            plain SGD.
        node_embeddings: a linear recommender beside these; see `HeteroOptions`.
    Raises:
        ConfigError: an argument is out of range, or a type has no number of nodes.
    """

    reads_edge_weight = True
    reads_node_features = False
    reads_src_degree = True
    keeps_links = True

    def __init__(
        self,
        in_channels: Mapping[str, int] | int | None,
        out_channels: PositiveInt,
        num_layers: PositiveInt = 3,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int],
        normalize_output: bool = False,
        sparse_embeddings: bool = False,
        node_embeddings: Literal["auto"] | bool = "auto",
    ) -> None:
        super().__init__(
            {},
            out_channels,
            out_channels,
            num_layers,
            edge_types=edge_types,
            num_nodes=num_nodes,
            normalize_output=normalize_output,
            sparse_embeddings=sparse_embeddings,
            node_embeddings=node_embeddings,
        )
        # Nothing stands between propagation and output.
        self.activations = nn.ModuleList(nn.Identity() for _ in range(num_layers))
        del self.heads

    def build_layer(self, channels: int) -> nn.Module:
        return LightGCNLayer(self.edge_types)

    @property
    def reads_all_layers(self) -> bool:
        return True

    def readout_of(self, name: str, rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).mean(dim=0)


class Embedding(HeteroEncoder):
    """A learned row per node of every type, and nothing else: knowledge graph embeddings.

    Features and messages are not read, and batches sample no neighbors, whatever `sampling.fanouts`
    is. A node without training links keeps its initial row.

    Args:
        in_channels: not read; for a uniform constructor.
        out_channels: width of the rows.
        num_layers: not read.
        edge_types: not read.
        num_nodes: nodes in the whole graph, of every node type.
        dropout: on the rows.
        normalize_output: scales each row to unit L2 norm.
        sparse_embeddings: gradients of learned rows are sparse, for SparseAdam, Adagrad or
            plain SGD.
        node_embeddings: a linear recommender beside these; see `HeteroOptions`.
    Raises:
        ConfigError: an argument is out of range.
    """

    reads_node_features = False
    reads_messages = False
    keeps_links = True

    def __init__(
        self,
        in_channels: Mapping[str, int] | int | None,
        out_channels: PositiveInt,
        num_layers: PositiveInt = 1,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int],
        dropout: Share = 0.0,
        normalize_output: bool = False,
        sparse_embeddings: bool = False,
        node_embeddings: Literal["auto"] | bool = "auto",
    ) -> None:
        super().__init__(
            {},
            out_channels,
            out_channels,
            1,
            edge_types=(),
            num_nodes=num_nodes,
            dropout=dropout,
            normalize_output=normalize_output,
            sparse_embeddings=sparse_embeddings,
            node_embeddings=node_embeddings,
        )
        self.activations = nn.ModuleList([nn.Identity()])
        del self.heads

    def build_layer(self, channels: int) -> nn.Module:
        return _OwnRows()

    def readout_of(self, name: str, rows: list[Tensor]) -> Tensor:
        return rows[-1]


class EASE(Embedding):
    """Item-item regression in closed form: link prediction without an encoder.

    Ranks by a `LinearRecommender` alone. A number per node stands in for the encoder, without a
    weight, and no step is taken.

    Args:
        in_channels, out_channels, num_layers, edge_types: not read.
        num_nodes: nodes in the whole graph, of every node type.
    """

    def __init__(
        self,
        in_channels: Mapping[str, int] | int | None,
        out_channels: PositiveInt = 1,
        num_layers: PositiveInt = 1,
        *,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[str, int],
    ) -> None:
        super().__init__({}, 1, edge_types=(), num_nodes=num_nodes)


class _OwnRows(nn.Module):
    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> dict[str, Any]:
        return dict(x_src)
