"""Small random graphs, as one block of all nodes and as what PyG takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from raygnn.models.encoder import Encoder
from raygnn.models.exact import IN_THIS_PROCESS, ExactOptions, InEdges, exact_inference
from raygnn.sampling.blocks import Block


@dataclass(frozen=True)
class Graph:
    x: Tensor
    edge_index: Tensor
    block: Block

    @property
    def num_nodes(self) -> int:
        return self.x.shape[0]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads only get into each other's way on tensors of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_graph(
    num_nodes: int = 30, num_edges: int = 120, channels: int = 8, self_edges: bool = False
) -> Graph:
    """Has a node without in-edges (the last) and no parallel edges."""
    generator = torch.Generator().manual_seed(num_nodes)
    src = torch.randint(num_nodes, (num_edges,), generator=generator)
    dst = torch.randint(num_nodes - 1, (num_edges,), generator=generator)
    if not self_edges:
        src, dst = src[src != dst], dst[src != dst]
    pairs = torch.unique(dst * num_nodes + src)
    edge_index = torch.stack([pairs % num_nodes, pairs // num_nodes])
    degree = torch.bincount(edge_index[1], minlength=num_nodes)
    block = Block(
        edge_index=edge_index,
        dst_ptr=torch.cat([degree.new_zeros(1), degree.cumsum(0)]),
        num_src=num_nodes,
        num_dst=num_nodes,
        src_in_degree=degree.float(),
        src_degree=torch.bincount(edge_index[0], minlength=num_nodes).float(),
        dst_degree=degree.float(),
    )
    return Graph(torch.randn(num_nodes, channels, generator=generator), edge_index, block)


def outputs_and_grads(out: Tensor | Mapping[str, Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The output, by type in one piece, and gradients of a weighted sum of it; 0 where unread."""
    if not isinstance(out, Tensor):
        out = torch.cat([out[name].flatten() for name in sorted(out)])
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    total = (out * weight).sum()
    return [out, *torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)]


def assert_same_with_grads(
    ours: Tensor | Mapping[str, Tensor],
    theirs: Tensor | Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    their_inputs: Sequence[Tensor] | None = None,
    **tolerance: float,
) -> None:
    """`their_inputs`: of the other output, if they differ."""
    torch.testing.assert_close(
        outputs_and_grads(ours, inputs),
        outputs_and_grads(theirs, their_inputs or inputs),
        **tolerance,
    )


def exact_rows(
    encoder: Encoder,
    rows_of: Callable[[Any], Any],
    edges: InEdges,
    options: ExactOptions = IN_THIS_PROCESS,
) -> Tensor:
    """`exact_inference` of a graph of one node type.

    Args:
        rows_of: gives the features of node ids.
    """
    num_nodes = {"node": len(edges.indptr) - 1}
    in_edges = {("node", "to", "node"): edges}
    return exact_inference(
        encoder, lambda _, ids: rows_of(ids), in_edges, num_nodes, None, options
    )["node"]
