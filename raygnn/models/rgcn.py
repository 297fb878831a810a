"""R-GCN, the relational graph convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from raygnn.data.edge_types import EdgeType
from raygnn.models.adjacency import Adjacency, positions
from raygnn.models.encoder import Rows
from raygnn.models.hetero_encoder import HeteroEncoder, HeteroOptions, block_of
from raygnn.models.segment import segment_mean

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block, HeteroBlock


class RGCNLayer(nn.Module):
    """PyG's `RGCNConv` over destination-sorted blocks: W_0 x_i + b + sum_r mean_j W_r x_j.

    All node types share W_0 and b. With `num_bases`, each W_r is a combination of that many
    matrices.

    Attributes:
        weight: [num_edge_types or num_bases, channels, channels].
        comp: [num_edge_types, num_bases], or None.
        root: W_0, [channels, channels].
    """

    def __init__(
        self, edge_types: Sequence[EdgeType], channels: int, num_bases: int | None = None
    ) -> None:
        super().__init__()
        self.edge_types = list(edge_types)
        num_matrices = len(edge_types) if num_bases is None else num_bases
        self.weight = nn.Parameter(torch.empty(num_matrices, channels, channels))
        self.comp: nn.Parameter | None = None
        if num_bases is not None:
            self.comp = nn.Parameter(torch.empty(len(edge_types), num_bases))
            nn.init.xavier_uniform_(self.comp)
        self.root = nn.Parameter(torch.empty(channels, channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        for matrix in (*self.weight, self.root):
            nn.init.xavier_uniform_(matrix)

    def forward(self, x_src: Mapping[str, Tensor], block: HeteroBlock) -> Rows:
        weight: Tensor = self.weight
        if self.comp is not None:
            weight = torch.einsum("rb,bio->rio", self.comp, weight)
        out = {
            name: x[: block.num_dst.get(name, 0)] @ self.root + self.bias
            for name, x in x_src.items()
        }
        offsets, every = _stacked(x_src)
        for target in dict.fromkeys(edge_type[2] for edge_type in self.edge_types):
            found = [
                (i, offsets[edge_type[0]], block_of(block, edge_type, self.root))
                for i, edge_type in enumerate(self.edge_types)
                if edge_type[2] == target
            ]
            found = [each for each in found if each[2].num_edges]
            if found:
                messages, dst = _messages(every, found, weight)
                out[target] = out[target].index_add(0, dst, messages.to(out[target].dtype))
        return out


def _stacked(x_src: Mapping[str, Tensor]) -> tuple[dict[str, int], Tensor]:
    starts = accumulate((len(x) for x in x_src.values()), initial=0)
    rows = list(x_src.values())
    return dict(zip(x_src, starts, strict=False)), rows[0] if len(rows) == 1 else torch.cat(rows)


def _messages(
    x: Tensor, blocks: Sequence[tuple[int, int, Block]], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """W_r times the mean of the neighbors along r, for each pair of r and a node with neighbors.

    With hundreds of edge types most pairs have no neighbors, and are neither stored nor multiplied.

    Args:
        blocks: number of the edge type, offset of its sources in x, and its edges.
    Returns:
        [num_pairs, channels], and int64 [num_pairs], the node of each.
    """
    sources, counts, nodes = [], [], []
    for _, offset, of_type in blocks:
        num_in_edges = of_type.dst_ptr.diff()
        num_reached = None if of_type.counts is None else of_type.counts.num_reached
        if num_reached is None:
            num_reached = int(num_in_edges.count_nonzero())
        has_any = positions(num_in_edges > 0, num_reached)
        sources.append(of_type.edge_index[0] + offset)
        counts.append(num_in_edges[has_any])
        nodes.append(has_any)
    num_edges = torch.cat(counts)
    pairs = torch.arange(len(num_edges), device=x.device)
    total = sum(of_type.num_edges for *_, of_type in blocks)
    pair_of_edge = pairs.repeat_interleave(num_edges, output_size=total)
    ptr = functional.pad(num_edges.cumsum(0), (1, 0))
    mean = segment_mean(x, Adjacency(torch.cat(sources), pair_of_edge, ptr, len(x)))
    parts = mean.split([len(of_type) for of_type in counts])
    matrices = weight.unbind(0)  # indexing would make a whole gradient for each
    products = [part @ matrices[i] for part, (i, *_) in zip(parts, blocks, strict=True)]
    return torch.cat(products), torch.cat(nodes)


class RGCNOptions(HeteroOptions):
    """Options shared by all encoders, plus:

    Attributes:
        num_bases: number of matrices shared by the edge types; None gives each its own.
    """

    num_bases: PositiveInt | None = None


class RGCN(HeteroEncoder):
    """Modeling Relational Data with Graph Convolutional Networks, arXiv:1703.06103.

    Takes the arguments of `RGCNOptions`.
    """

    Options = RGCNOptions
    options: RGCNOptions
    row_biases = "bias"

    def build_layer(self, channels: int) -> nn.Module:
        return RGCNLayer(self.edge_types, channels, self.options.num_bases)
