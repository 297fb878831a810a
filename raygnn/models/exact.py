"""Exact encoding of a whole graph, layer by layer, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.models.encoder import BlockEncoder
from raygnn.models.sparse_input import Features, dense
from raygnn.sampling.blocks import Block, HeteroBlock
from raygnn.sampling.growing_subgraph import LocalIds
from raygnn.sampling.protocols import EdgeValues
from raygnn.sampling.sparse_features import SparseFeatures

_CPU = torch.device("cpu")

#: (node type, int64 ids) -> features of these nodes.
RowSource = Callable[[str, np.ndarray], np.ndarray | Features]
#: The same, by node type, as a layer reads them.
_InputSource = Callable[[str, np.ndarray], Mapping[str, Features]]


def compute_here(
    chunks: Sequence[tuple[int, int]],
    rows_of: Callable[[int, int], Tensor],
    width: int,
    what: str = "",
) -> Tensor:
    """Computes the rows of all nodes chunk by chunk: [num_rows, width] on the CPU.

    Args:
        chunks: (first, last + 1) row, in order and without gaps.
        rows_of: computes [last - first, width] on the CPU.
        what: shown as progress, such as "layer 1 of 2".
    """
    out = torch.zeros(0, width)
    for first, last in chunks:
        rows = rows_of(first, last)
        if not first:
            out = rows.new_empty(chunks[-1][1], width)
        out[first:last] = rows
    return out


#: Computes rows as `compute_here` does, with the same arguments.
RowComputation = Callable[
    [Sequence[tuple[int, int]], Callable[[int, int], Tensor], int, str], Tensor
]


@dataclass(frozen=True, kw_only=True)
class InEdges:
    """All in-edges of one edge type, as a CSC matrix by destination.

    Attributes:
        indptr: int64 [num_dst_nodes + 1].
        indices: int32 or int64 [num_edges], sources.
        src_degree: [num_src_nodes], out-degrees for encoders with `reads_src_degree`; None counts
            `indices`.
        dst_degree: [num_dst_nodes], in-degrees; None counts `indptr`.
        edge_weight: [num_edges] or None, for encoders that read it.
        edge_attr: [num_edges, edge_dim] or None, for encoders that read it.
    """

    indptr: np.ndarray
    indices: EdgeValues
    src_degree: np.ndarray | None = None
    dst_degree: np.ndarray | None = None
    edge_weight: EdgeValues | None = None
    edge_attr: EdgeValues | None = None

    def edge_index(self, first: int, last: int, local: LocalIds) -> np.ndarray:
        """Edges into a range of destinations, int64 [2, num_edges]. `local` numbers new sources."""
        start, stop = int(self.indptr[first]), int(self.indptr[last])
        edge_index = np.empty((2, stop - start), np.int64)
        local.add(np.asarray(self.indices[start:stop]), edge_index[0])
        edge_index[1] = np.repeat(np.arange(last - first), np.diff(self.indptr[first : last + 1]))
        return edge_index

    def columns(self, first: int, last: int, device: torch.device) -> dict[str, Any]:
        edges = slice(int(self.indptr[first]), int(self.indptr[last]))
        columns = {"edge_weight": self.edge_weight, "edge_attr": self.edge_attr}
        return {
            name: torch.tensor(rows[edges], device=device)
            for name, rows in columns.items()
            if rows is not None
        }


@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """Device and chunk sizes for encoding a complete graph.

    Attributes:
        device: the device of the encoder and of its layers.
        chunk_size: rows on the device at a time, destinations and in-edges together. A node with
            more in-edges has its own chunk.
        compute: divides the work among ranks, if there are several.
    """

    device: torch.device = _CPU
    chunk_size: int = 30_000
    compute: RowComputation = compute_here

    def __post_init__(self) -> None:
        assert self.chunk_size > 0


#: On the CPU, by one process.
IN_THIS_PROCESS = ExactOptions()


@torch.no_grad()
def exact_inference(
    encoder: BlockEncoder,
    x_source: RowSource,
    in_edges: Mapping[EdgeType, InEdges],
    num_nodes: Mapping[str, int],
    node_types: Sequence[str] | None = None,
    options: ExactOptions = IN_THIS_PROCESS,
) -> dict[str, Tensor]:
    """Encodes every node of some types from all of its in-edges.

    Each layer is applied to all nodes before the next, so a node is computed once per layer,
    however many others read it. CPU memory has the previous layer's output for all nodes, and that
    of all layers if the readout needs them. The encoder runs in evaluation mode.

    Args:
        x_source: called per chunk, so features may be larger than memory.
        in_edges: by edge type of the graph.
        num_nodes: by node type.
        node_types: types to return; None returns all.
    Returns:
        By node type, [num_nodes, out_channels] on the CPU.
    """
    names = list(num_nodes) if encoder.node_types is None else encoder.node_types
    used = {
        t: edges
        for t, edges in in_edges.items()
        if encoder.edge_types is None or t in encoder.edge_types
    }
    builder = _BlockBuilder(
        used,
        {name: num_nodes[name] for name in names},
        options.device,
        src_degrees=encoder.reads_src_degree,
    )
    wanted = names if node_types is None else node_types
    was_training = encoder.training
    encoder.eval()
    try:
        return _LayerByLayer(encoder, builder, options).run(x_source, names, wanted)
    finally:
        encoder.train(was_training)


class _LayerByLayer:
    def __init__(
        self, encoder: BlockEncoder, builder: _BlockBuilder, options: ExactOptions
    ) -> None:
        self._encoder = encoder
        self._builder = builder
        self._options = options
        #: Outputs of each layer for all nodes, as long as a later layer reads them.
        self._outputs: list[dict[str, Tensor]] = []

    def run(
        self, x_source: RowSource, names: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, Tensor]:
        encoder, embedded = self._encoder, self._encoder.embedded_types

        def inputs(name: str, ids: np.ndarray) -> Mapping[str, Features]:
            rows = ids if name in embedded else x_source(name, ids)
            return encoder.encode_inputs({name: rows_on(self._options.device, rows)})

        def rows_before(name: str, ids: np.ndarray) -> Mapping[str, Features]:
            # On a CPU a fraction of the time of [].
            rows = self._outputs[-1][name].index_select(0, torch.from_numpy(ids))
            return {name: rows.to(self._options.device)}

        read = inputs
        if encoder.computes_inputs:
            self._outputs.append({name: self._inputs(name, inputs) for name in names})
            read = rows_before
        for i in range(encoder.num_layers):
            of_layer = wanted if i == encoder.num_layers - 1 else names
            self._outputs.append({name: self._apply(i, name, read) for name in of_layer})
            if not encoder.reads_all_layers:
                del self._outputs[:-1]
            read = rows_before
        return self._outputs[-1]

    def _inputs(self, name: str, inputs: _InputSource) -> Tensor:
        def rows_of(first: int, last: int) -> Tensor:
            return dense(inputs(name, np.arange(first, last))[name]).cpu()

        num_nodes, size = self._builder.num_nodes[name], self._options.chunk_size
        chunks = [(first, min(first + size, num_nodes)) for first in range(0, num_nodes, size)]
        width = self._encoder.hidden_channels
        return self._options.compute(chunks, rows_of, width, f"inputs of {name}")

    def _apply(self, i: int, name: str, read: _InputSource) -> Tensor:
        encoder, device = self._encoder, self._options.device
        is_last = i == encoder.num_layers - 1
        before = self._outputs if encoder.reads_all_layers else []

        def rows_of(first: int, last: int) -> Tensor:
            ids, block = self._builder.block(name, first, last)
            x_src: dict[str, Features] = {}
            for source, of_source in ids.items():
                x_src |= read(source, of_source)
            x = encoder.forward_layer(i, x_src, block)
            if is_last:
                chunk = [{name: rows[name][first:last].to(device)} for rows in before]
                x = encoder.readout([*chunk, {name: x[name]}])
            return x[name].cpu()

        chunks = list(destination_chunks(self._builder.rows_before(name), self._options.chunk_size))
        width = encoder.out_channels if is_last else encoder.hidden_channels
        of_type = f" of {name}" if len(self._builder.num_nodes) > 1 else ""
        what = f"layer {i + 1} of {encoder.num_layers}{of_type}"
        return self._options.compute(chunks, rows_of, width, what)


def rows_on(device: torch.device, rows: np.ndarray | Features) -> Features:
    return (rows if isinstance(rows, SparseFeatures) else torch.as_tensor(rows)).to(device)


def destination_chunks(indptr: np.ndarray, chunk_size: int) -> Iterator[tuple[int, int]]:
    """Yields ranges (first, last + 1) of at most `chunk_size` nodes and in-edges together.

    A single node may exceed the size.
    """
    # Nodes and in-edges before each node: ascending by at least 1 a node.
    rows_before = indptr + np.arange(len(indptr))
    num_nodes = len(indptr) - 1
    first = 0
    while first < num_nodes:
        limit = rows_before[first] + chunk_size
        last = int(np.searchsorted(rows_before, limit, side="right")) - 1
        last = min(max(last, first + 1), num_nodes)
        yield first, last
        first = last


class _BlockBuilder:
    def __init__(
        self,
        in_edges: Mapping[EdgeType, InEdges],
        num_nodes: Mapping[str, int],
        device: torch.device,
        *,
        src_degrees: bool,
    ) -> None:
        self._in_edges = in_edges
        self.num_nodes = num_nodes
        self.device = device
        self._local = {name: LocalIds() for name in num_nodes}
        self._dst_degrees = {
            t: np.diff(e.indptr) if e.dst_degree is None else e.dst_degree
            for t, e in in_edges.items()
        }
        self._src_degrees = {
            t: np.bincount(np.asarray(e.indices), minlength=num_nodes[t[0]])
            if e.src_degree is None
            else e.src_degree
            for t, e in in_edges.items()
            if src_degrees
        }

    def rows_before(self, node_type: str) -> np.ndarray:
        total = np.zeros(self.num_nodes[node_type] + 1, dtype=np.int64)
        for (*_, target), edges in self._in_edges.items():
            if target == node_type:
                total += edges.indptr
        return total

    def block(
        self, node_type: str, first: int, last: int
    ) -> tuple[dict[str, np.ndarray], HeteroBlock]:
        """Source ids by node type, the destinations first, and the blocks."""
        edges_of = {t: e for t, e in self._in_edges.items() if t[2] == node_type}
        sources = dict.fromkeys([node_type, *(t[0] for t in edges_of)])
        for source in sources:
            self._local[source].clear()
        self._local[node_type].add(np.arange(first, last), np.empty(last - first, np.int64))
        edge_index = {
            t: edges.edge_index(first, last, self._local[t[0]]) for t, edges in edges_of.items()
        }
        ids = {source: self._local[source].nodes.copy() for source in sources}
        blocks = {t: self._block(t, edge_index[t], ids[t[0]], first, last) for t in edges_of}
        for t in self._src_degrees:
            if t not in blocks and t[0] in ids:
                blocks[t] = self._block(t, np.empty((2, 0), np.int64), ids[t[0]], 0, 0)
        num_src = {name: len(of_type) for name, of_type in ids.items()}
        return ids, HeteroBlock(blocks=blocks, num_src=num_src, num_dst={node_type: last - first})

    def _block(
        self,
        edge_type: EdgeType,
        edge_index: np.ndarray,
        sources: np.ndarray,
        first: int,
        last: int,
    ) -> Block:
        edges = self._in_edges[edge_type]
        indptr = edges.indptr[first : last + 1]
        in_degree, out_degree = self._dst_degrees[edge_type], self._src_degrees.get(edge_type)
        return Block(
            edge_index=torch.from_numpy(edge_index).to(self.device),
            dst_ptr=torch.from_numpy(indptr - indptr[0]).to(self.device),
            num_src=len(sources),
            num_dst=last - first,
            dst_degree=self._float(in_degree[first:last]),
            src_in_degree=(
                self._float(in_degree[sources]) if edge_type[0] == edge_type[2] else None
            ),
            src_degree=None if out_degree is None else self._float(out_degree[sources]),
            **edges.columns(first, last, self.device),
        )

    def _float(self, degree: np.ndarray) -> Tensor:
        return torch.tensor(degree, dtype=torch.float32, device=self.device)
