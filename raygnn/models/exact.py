"""Exact encoding of a whole graph, layer by layer, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raygnn.data.edge_types import EdgeType
from raygnn.device_memory import copied, free_bytes
from raygnn.models.device_blocks import DeviceBlocks
from raygnn.models.encoder import BlockEncoder
from raygnn.models.in_edges import InEdges
from raygnn.models.sparse_input import Features, dense
from raygnn.sampling.blocks import Block, HeteroBlock
from raygnn.sampling.growing_subgraph import LocalIds
from raygnn.sampling.sparse_features import SparseFeatures

_CPU = torch.device("cpu")

#: (node type, int64 ids) -> features of these nodes.
RowSource = Callable[[str, np.ndarray], np.ndarray | Features]
#: The same, by node type, as a layer reads them.
_InputSource = Callable[[str, np.ndarray | Tensor], Mapping[str, Features]]


def compute_here(
    chunks: Sequence[tuple[int, int]],
    rows_of: Callable[[int, int], Tensor],
    width: int,
    what: str = "",
) -> Tensor:
    """Computes the rows of all nodes chunk by chunk: [num_rows, width] on their device.

    Args:
        chunks: (first, last + 1) row, in order and without gaps.
        rows_of: computes [last - first, width].
        what: shown as progress, such as "layer 1 of 2".
    """
    out = torch.zeros(0, width)
    for first, last in chunks:
        rows = rows_of(first, last)
        if len(chunks) == 1:
            return rows
        if not first:
            out = rows.new_empty(chunks[-1][1], width)
        out[first:last] = rows
    return out


#: Computes rows as `compute_here` does, with the same arguments.
RowComputation = Callable[
    [Sequence[tuple[int, int]], Callable[[int, int], Tensor], int, str], Tensor
]


@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """Device and chunk sizes for encoding a complete graph.

    Attributes:
        device: the device of the encoder and of its layers.
        chunk_size: rows on the device at a time, destinations and in-edges together. A node with
            more in-edges has its own chunk. Default: 30,000, or what fits into a GPU if one process
            computes all rows.
        compute: divides the work among ranks, if there are several.
        kept: what a GPU keeps for the next encoding of the same graph; None keeps nothing.
    """

    device: torch.device = _CPU
    chunk_size: int | None = None
    compute: RowComputation = compute_here
    kept: KeptBlocks | None = None

    def __post_init__(self) -> None:
        assert self.chunk_size is None or self.chunk_size > 0


@dataclass
class KeptBlocks:
    """Blocks of a graph on a GPU, and the chunks that they are of, by node type."""

    blocks: DeviceBlocks | None = None
    chunks: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


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
    however many others read it. Memory has the previous layer's output for all nodes, and that of
    all layers if the readout needs them: that of a GPU if edges and rows fit, else the CPU's. The
    encoder runs in evaluation mode.

    Args:
        x_source: called per chunk, so features may be larger than memory.
        in_edges: by edge type of the graph.
        num_nodes: by node type.
        node_types: types to return; None returns all.
    Returns:
        By node type, [num_nodes, out_channels], on the device if rows fit there.
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


#: Default rows on the device at a time, and bytes of a row of float32 channels while a layer runs.
_CHUNK_SIZE, _BYTES_PER_CHANNEL = 30_000, 4 * 4


class _LayerByLayer:
    def __init__(
        self, encoder: BlockEncoder, builder: _BlockBuilder, options: ExactOptions
    ) -> None:
        self._encoder = encoder
        self._builder = builder
        self._options = options
        self._kept = KeptBlocks() if options.kept is None else options.kept
        #: Outputs of each layer for all nodes, as long as a later layer reads them.
        self._outputs: list[dict[str, Tensor]] = []
        #: Features of all nodes on a GPU; None on a CPU, or if they do not fit.
        self._features: dict[str, Tensor] | None = None

    def run(
        self, x_source: RowSource, names: Sequence[str], wanted: Sequence[str]
    ) -> dict[str, Tensor]:
        encoder, embedded = self._encoder, self._encoder.embedded_types

        def inputs(name: str, ids: np.ndarray | Tensor) -> Mapping[str, Features]:
            if isinstance(ids, Tensor):
                assert self._features is not None
                rows: Any = ids if name in embedded else self._features[name].index_select(0, ids)
            else:
                rows = ids if name in embedded else x_source(name, ids)
            return encoder.encode_inputs({name: rows_on(self._options.device, rows)})

        def rows_before(name: str, ids: np.ndarray | Tensor) -> Mapping[str, Features]:
            rows = self._outputs[-1][name]
            chosen = ids if isinstance(ids, Tensor) else torch.from_numpy(ids)
            # On a CPU a fraction of the time of [].
            chosen = rows.index_select(0, copied(chosen, rows.device))
            return {name: chosen.to(self._options.device)}

        read: _InputSource = inputs
        if encoder.computes_inputs:
            self._outputs.append({name: self._inputs(name, inputs) for name in names})
            read = rows_before
        elif self._options.device.type == "cuda":
            self._features = self._features_on_device(x_source, [*set(names) - embedded])
        kept = self._kept
        if kept.blocks is None and (encoder.computes_inputs or self._features is not None):
            kept.blocks = self._builder.on_device()
        for i in range(encoder.num_layers):
            of_layer = wanted if i == encoder.num_layers - 1 else names
            self._outputs.append({name: self._apply(i, name, read) for name in of_layer})
            if not encoder.reads_all_layers:
                del self._outputs[:-1]
            read, self._features = rows_before, None
        return self._outputs[-1]

    def _features_on_device(
        self, x_source: RowSource, names: Sequence[str]
    ) -> dict[str, Tensor] | None:
        """Rows of all nodes of these types; None if they are sparse or do not fit."""
        device, of_type, total = self._options.device, {}, 0
        for name in names:
            rows = rows_on(device, x_source(name, np.arange(min(1, self._builder.num_nodes[name]))))
            if not isinstance(rows, Tensor):
                return None
            of_type[name] = rows
            total += self._builder.num_nodes[name] * rows[:1].nbytes
        if 3 * total > free_bytes(device):
            return None
        for name, row in of_type.items():
            every = row.new_empty((self._builder.num_nodes[name], *row.shape[1:]))
            for first, last in self._ranges(name):
                every[first:last] = dense(rows_on(device, x_source(name, np.arange(first, last))))
            of_type[name] = every
        return of_type

    def _ranges(self, name: str) -> list[tuple[int, int]]:
        num_nodes, size = self._builder.num_nodes[name], self._chunk_size
        return [(first, min(first + size, num_nodes)) for first in range(0, num_nodes, size)]

    def _inputs(self, name: str, inputs: _InputSource) -> Tensor:
        width = self._encoder.hidden_channels
        keeps = self._fits(self._builder.num_nodes[name], width)

        def rows_of(first: int, last: int) -> Tensor:
            rows = dense(inputs(name, np.arange(first, last))[name])
            return rows if keeps else rows.cpu()

        return self._options.compute(self._ranges(name), rows_of, width, f"inputs of {name}")

    def _apply(self, i: int, name: str, read: _InputSource) -> Tensor:
        encoder, device = self._encoder, self._options.device
        is_last = i == encoder.num_layers - 1
        before = self._outputs if encoder.reads_all_layers else []
        width = encoder.out_channels if is_last else encoder.hidden_channels
        keeps = self._fits(self._builder.num_nodes[name], width)
        builder = self._kept.blocks or self._builder

        def rows_of(first: int, last: int) -> Tensor:
            ids, block = builder.block(name, first, last)
            x_src: dict[str, Features] = {}
            for source, of_source in ids.items():
                x_src |= read(source, of_source)
            x = encoder.forward_layer(i, x_src, block)
            if is_last:
                chunk = [{name: rows[name][first:last].to(device)} for rows in before]
                x = encoder.readout([*chunk, {name: x[name]}])
            return x[name] if keeps else x[name].cpu()

        chunks = self._kept.chunks
        if name not in chunks:
            chunks[name] = list(
                destination_chunks(self._builder.rows_before(name), self._chunk_size)
            )
        of_type = f" of {name}" if len(self._builder.num_nodes) > 1 else ""
        what = f"layer {i + 1} of {encoder.num_layers}{of_type}"
        return self._options.compute(chunks[name], rows_of, width, what)

    @property
    def _chunk_size(self) -> int:
        options, encoder = self._options, self._encoder
        if options.chunk_size is not None:
            return options.chunk_size
        # Free memory differs among ranks, and chunks may not.
        if options.device.type != "cuda" or options.compute is not compute_here:
            return _CHUNK_SIZE
        width = max(encoder.hidden_channels, encoder.out_channels)
        return max(_CHUNK_SIZE, free_bytes(options.device) // (4 * width * _BYTES_PER_CHANNEL))

    def _fits(self, num_rows: int, width: int) -> bool:
        """Whether the rows of a layer stay on the device: a third of its free memory at most."""
        device = self._options.device
        return device.type != "cuda" or 3 * 4 * num_rows * width <= free_bytes(device)


def rows_on(device: torch.device, rows: np.ndarray | Features) -> Features:
    if isinstance(rows, SparseFeatures):
        return rows.to(device)
    return copied(torch.as_tensor(rows), device)


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

    def on_device(self) -> DeviceBlocks | None:
        """The same blocks, built on a GPU; None on a CPU, or if the edges do not fit."""
        if self.device.type != "cuda":
            return None
        if not DeviceBlocks.fits(self._in_edges, self.num_nodes, self.device):
            return None
        return DeviceBlocks(
            self._in_edges, self.num_nodes, self.device, self._dst_degrees, self._src_degrees
        )

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
