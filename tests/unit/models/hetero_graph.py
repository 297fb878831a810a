"""A small random graph of three node types, and blocks of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.models.exact import InEdges
from raygnn.sampling.blocks import Block, HeteroBlock

NUM_NODES = {"user": 12, "item": 9, "tag": 5}
IN_CHANNELS = {"user": 6, "item": 4}  # tags have no features
EDGE_TYPES: list[EdgeType] = [
    ("user", "knows", "user"),
    ("user", "buys", "item"),
    ("item", "rev_buys", "user"),
    ("tag", "marks", "item"),  # nothing leads to a tag
    ("user", "blocks", "user"),  # no edges
]
NUM_EDGES = [30, 25, 25, 12, 0]
EDGE_DIMS: dict[EdgeType, int] = {("user", "knows", "user"): 3, ("tag", "marks", "item"): 2}


@dataclass(frozen=True)
class HeteroGraph:
    x: dict[str, Tensor]
    edge_index: dict[EdgeType, Tensor]
    edge_attr: dict[EdgeType, Tensor]

    def block(self, seeds: dict[str, Tensor]) -> tuple[dict[str, Tensor], HeteroBlock]:
        """Node ids, by type, the seeds' first, and all edges into the seeds."""
        kept: dict[EdgeType, Tensor] = {}
        nodes = dict(seeds)
        for edge_type, (src, dst) in self.edge_index.items():
            kept[edge_type] = torch.isin(dst, seeds[edge_type[2]])
            found = src[kept[edge_type]].unique()
            have = nodes[edge_type[0]]
            nodes[edge_type[0]] = torch.cat([have, found[~torch.isin(found, have)]])
        blocks = {t: self._block(t, kept[t], nodes[t[0]], seeds[t[2]]) for t in self.edge_index}
        return nodes, HeteroBlock(
            blocks=blocks,
            num_src={name: len(ids) for name, ids in nodes.items()},
            num_dst={name: len(ids) for name, ids in seeds.items()},
        )

    def blocks(
        self, seeds: dict[str, Tensor], num_layers: int
    ) -> tuple[dict[str, Tensor], list[HeteroBlock]]:
        """Node ids, the seeds' first, and blocks for so many layers, deepest first."""
        nodes = {name: seeds.get(name, torch.empty(0).long()) for name in NUM_NODES}
        blocks = []
        for _ in range(num_layers):
            nodes, block = self.block(nodes)
            blocks.append(block)
        return nodes, blocks[::-1]

    def whole(self, num_layers: int) -> list[HeteroBlock]:
        every = {name: torch.arange(num) for name, num in NUM_NODES.items()}
        return self.blocks(every, num_layers)[1]

    def rows(self, nodes: dict[str, Tensor]) -> dict[str, Tensor]:
        """What encoders take of nodes."""
        return {name: self.x[name][ids] for name, ids in nodes.items()}

    def in_edges(self) -> dict[EdgeType, InEdges]:
        every = {name: torch.arange(num) for name, num in NUM_NODES.items()}
        _, whole = self.block(every)
        return {
            t: InEdges(
                indptr=block.dst_ptr.numpy(),
                indices=block.edge_index[0].numpy().astype(np.int32),
                edge_attr=None if block.edge_attr is None else block.edge_attr.numpy(),
            )
            for t, block in whole.blocks.items()
        }

    def _block(self, edge_type: EdgeType, kept: Tensor, sources: Tensor, targets: Tensor) -> Block:
        src, dst = self.edge_index[edge_type][:, kept]
        local = torch.stack([_places(sources, src), _places(targets, dst)])
        order = local[1].argsort(stable=True)
        counts = torch.bincount(local[1], minlength=len(targets))
        src_all, dst_all = self.edge_index[edge_type]
        out_degree = torch.bincount(src_all, minlength=NUM_NODES[edge_type[0]])
        in_degree = torch.bincount(dst_all, minlength=NUM_NODES[edge_type[2]])
        attr = self.edge_attr.get(edge_type)
        return Block(
            edge_index=local[:, order],
            num_src=len(sources),
            num_dst=len(targets),
            dst_ptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            src_degree=out_degree[sources].float(),
            dst_degree=in_degree[targets].float(),
            src_in_degree=in_degree[sources].float() if edge_type[0] == edge_type[2] else None,
            edge_attr=None if attr is None else attr[kept][order],
        )


def _places(ids: Tensor, wanted: Tensor) -> Tensor:
    place = torch.empty(max(NUM_NODES.values()), dtype=torch.long)
    place[ids] = torch.arange(len(ids))
    return place[wanted]


def random_hetero_graph() -> HeteroGraph:
    """Its last user and item have no in-edges."""
    generator = torch.Generator().manual_seed(0)
    edge_index, edge_attr = {}, {}
    for (source, relation, target), num in zip(EDGE_TYPES, NUM_EDGES, strict=True):
        edges = torch.stack(
            [
                torch.randint(NUM_NODES[source], (num,), generator=generator),
                torch.randint(NUM_NODES[target] - 1, (num,), generator=generator),
            ]
        )
        edge_type = (source, relation, target)
        edge_index[edge_type] = edges[:, edges[1].argsort(stable=True)]
        if edge_type in EDGE_DIMS:
            edge_attr[edge_type] = torch.randn(num, EDGE_DIMS[edge_type], generator=generator)
    buys = edge_index["user", "buys", "item"]
    backwards = buys.flip(0)
    edge_index["item", "rev_buys", "user"] = backwards[:, backwards[1].argsort(stable=True)]
    x = {
        "user": torch.randn(12, 6, generator=generator),
        "item": torch.randn(9, 4, generator=generator),
        "tag": torch.arange(5),
    }
    return HeteroGraph(x, edge_index, edge_attr)
