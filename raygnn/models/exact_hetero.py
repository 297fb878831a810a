"""Exact encoding of a whole heterogeneous graph, layer by layer, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.models.exact import (
    IN_THIS_PROCESS,
    ExactOptions,
    InEdges,
    destination_chunks,
    rows_on,
)
from raygnn.models.hetero_encoder import HeteroEncoder
from raygnn.models.sparse_input import Features
from raygnn.sampling.blocks import Block, HeteroBlock
from raygnn.sampling.local_ids import LocalIds

#: (node type, int64 ids) -> what `HeteroEncoder.encode_inputs` takes of these nodes.
TypedRowSource = Callable[[str, np.ndarray], np.ndarray | Features]


@torch.no_grad()
def exact_hetero_inference(
    encoder: HeteroEncoder,
    x_source: TypedRowSource,
    in_edges: Mapping[EdgeType, InEdges],
    num_nodes: Mapping[str, int],
    node_types: Sequence[str] | None = None,
    options: ExactOptions = IN_THIS_PROCESS,
) -> dict[str, Tensor]:
    """Encodes every node of some types from all of its in-edges.

    As `exact_inference`: a layer is applied to all node types before the next one. Only the outputs
    of the layer before (of all layers, where the encoder's readout takes them) are held for all
    nodes, in CPU memory. The encoder runs in evaluation mode.

    Args:
        x_source: gives the input of int64 node ids of a type: features, or for the encoder's
            `embedded_types` the ids themselves. Called for a chunk at a time.
        in_edges: of each edge type of the encoder that the graph has.
        num_nodes: of each node type.
        node_types: whose outputs are wanted; None takes all.
    Returns:
        By node type, [num_nodes, out_channels] on the CPU.
    """
    wanted = list(encoder.node_types if node_types is None else node_types)
    used = {t: edges for t, edges in in_edges.items() if t in encoder.edge_types}
    builder = _HeteroBlockBuilder(
        used, {name: num_nodes[name] for name in encoder.node_types}, options.device
    )
    inference = _LayerwiseInference(encoder, builder, options)
    was_training = encoder.training
    encoder.eval()
    try:
        return inference.run(x_source, wanted)
    finally:
        encoder.train(was_training)


class _LayerwiseInference:
    def __init__(
        self, encoder: HeteroEncoder, builder: _HeteroBlockBuilder, options: ExactOptions
    ) -> None:
        self._encoder = encoder
        self._builder = builder
        self._options = options

    def run(self, x_source: TypedRowSource, wanted: Sequence[str]) -> dict[str, Tensor]:
        """Outputs of all nodes of the wanted types."""
        encoder = self._encoder
        layers = [{name: self._inputs(name, x_source) for name in encoder.node_types}]
        for i in range(encoder.num_layers):
            is_last = i == encoder.num_layers - 1
            names = wanted if is_last else encoder.node_types
            layers.append({name: self._apply(i, name, layers, is_last=is_last) for name in names})
            if not encoder.reads_all_layers:
                del layers[:-1]
        return layers[-1]

    def _inputs(self, name: str, x_source: TypedRowSource) -> Tensor:
        def rows_of(first: int, last: int) -> Tensor:
            rows = rows_on(self._builder.device, x_source(name, np.arange(first, last)))
            return self._encoder.encode_inputs({name: rows})[name].cpu()

        num_nodes, size = self._builder.num_nodes[name], self._options.chunk_size
        chunks = [(first, min(first + size, num_nodes)) for first in range(0, num_nodes, size)]
        width, what = self._encoder.hidden_channels, f"inputs of {name}"
        return self._options.compute(chunks, rows_of, width, what)

    def _apply(
        self, i: int, name: str, layers: Sequence[Mapping[str, Tensor]], *, is_last: bool
    ) -> Tensor:
        """Rows of one node type after layer i; after the last one, outputs."""
        encoder, device = self._encoder, self._builder.device

        def rows_of(first: int, last: int) -> Tensor:
            ids, block = self._builder.block(name, first, last)
            x_src = {
                source: layers[-1][source].index_select(0, torch.from_numpy(of_source)).to(device)
                for source, of_source in ids.items()
            }
            x = encoder.forward_layer(i, x_src, block.num_dst, block)[name]
            if is_last:
                own = [h[name][first:last].to(device) for h in layers]
                x = encoder.readout([*({name: rows} for rows in own), {name: x}])[name]
            return x.cpu()

        chunks = list(destination_chunks(self._builder.rows_before(name), self._options.chunk_size))
        width = encoder.out_channels if is_last else encoder.hidden_channels
        what = f"layer {i + 1} of {encoder.num_layers} of {name}"
        return self._options.compute(chunks, rows_of, width, what)


class _HeteroBlockBuilder:
    """Builds the blocks of all in-edges, of all edge types, of a range of nodes of one type."""

    def __init__(
        self,
        in_edges: Mapping[EdgeType, InEdges],
        num_nodes: Mapping[str, int],
        device: torch.device,
    ) -> None:
        self._in_edges = in_edges
        self.num_nodes = num_nodes
        self.device = device
        self._local = {name: LocalIds() for name in num_nodes}
        self._src_degrees = {
            t: np.bincount(np.asarray(e.indices), minlength=num_nodes[t[0]])
            if e.src_degree is None
            else e.src_degree
            for t, e in in_edges.items()
        }

    def rows_before(self, node_type: str) -> np.ndarray:
        """int64 [num_nodes + 1], in-edges of all edge types before each node."""
        total = np.zeros(self.num_nodes[node_type] + 1, dtype=np.int64)
        for (*_, target), edges in self._in_edges.items():
            if target == node_type:
                total += edges.indptr
        return total

    def block(
        self, node_type: str, first: int, last: int
    ) -> tuple[dict[str, np.ndarray], HeteroBlock]:
        """Gives the sources' ids by node type, the destinations' first, and the blocks."""
        edges_of = {t: e for t, e in self._in_edges.items() if t[2] == node_type}
        sources = dict.fromkeys([node_type, *(t[0] for t in edges_of)])
        for source in sources:
            self._local[source].clear()
        self._local[node_type].add(np.arange(first, last), np.empty(last - first, np.int64))
        edge_index = {
            t: edges.edge_index(first, last, self._local[t[0]]) for t, edges in edges_of.items()
        }
        ids = {source: self._local[source].nodes.copy() for source in sources}
        blocks = {
            t: self._block_of_type(t, edge_index[t], ids[t[0]], first, last) for t in edges_of
        }
        # Of a source, degrees along all of its edge types are read, those that lead elsewhere too.
        for t in self._in_edges:
            if t not in blocks and t[0] in ids:
                blocks[t] = self._block_without_edges(t, ids[t[0]])
        num_src = {name: len(of_type) for name, of_type in ids.items()}
        return ids, HeteroBlock(blocks=blocks, num_src=num_src, num_dst={node_type: last - first})

    def _block_of_type(
        self,
        edge_type: EdgeType,
        edge_index: np.ndarray,
        sources: np.ndarray,
        first: int,
        last: int,
    ) -> Block:
        edges = self._in_edges[edge_type]
        indptr = edges.indptr[first : last + 1]
        num_in_edges = np.diff(indptr)
        degree = num_in_edges if edges.dst_degree is None else edges.dst_degree[first:last]
        return Block(
            edge_index=torch.from_numpy(edge_index).to(self.device),
            dst_ptr=torch.from_numpy(indptr - indptr[0]).to(self.device),
            num_src=len(sources),
            num_dst=last - first,
            src_degree=self._float(self._src_degrees[edge_type][sources]),
            dst_degree=self._float(degree),
            **edges.columns(first, last, self.device),
        )

    def _block_without_edges(self, edge_type: EdgeType, sources: np.ndarray) -> Block:
        none = torch.zeros(0, dtype=torch.int64, device=self.device)
        return Block(
            edge_index=none.new_zeros(2, 0),
            dst_ptr=none.new_zeros(1),
            num_src=len(sources),
            num_dst=0,
            src_degree=self._float(self._src_degrees[edge_type][sources]),
            dst_degree=self._float(np.zeros(0)),
        )

    def _float(self, degree: np.ndarray) -> Tensor:
        return torch.tensor(degree, dtype=torch.float32, device=self.device)


def identity_rows(node_types: Iterable[str], x_source: TypedRowSource) -> TypedRowSource:
    """A row source that gives the ids of some node types, and asks another for the rest."""
    looked_up = frozenset(node_types)
    return lambda name, ids: ids if name in looked_up else x_source(name, ids)
