"""Exact encoding of a whole graph, layer by layer, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from raygnn.errors import ConfigError
from raygnn.models.encoder import Encoder
from raygnn.models.sparse_input import Features
from raygnn.sampling.blocks import Block
from raygnn.sampling.local_ids import LocalIds
from raygnn.sampling.protocols import EdgeValues
from raygnn.sampling.sparse_features import SparseFeatures

_CPU = torch.device("cpu")

#: int64 ids -> features of these nodes.
RowSource = Callable[[np.ndarray], np.ndarray | Features]


class RowComputation(Protocol):
    """Who computes the rows of all nodes, chunk by chunk, and where they are held."""

    def __call__(
        self,
        chunks: Sequence[tuple[int, int]],
        rows_of: Callable[[int, int], Tensor],
        width: int,
        what: str,
    ) -> Tensor:
        """Gives the rows of all chunks together.

        Args:
            chunks: (first, last + 1) row, in order and without gaps.
            rows_of: computes [last - first, width] on the CPU.
            what: they are, for who waits: "layer 1 of 2".
        Returns:
            [num_rows, width] on the CPU.
        """


def compute_here(
    chunks: Sequence[tuple[int, int]],
    rows_of: Callable[[int, int], Tensor],
    width: int,
    what: str = "",
) -> Tensor:
    """Computes all chunks in this process, and holds the rows in its memory."""
    out = torch.zeros(0, width)
    for first, last in chunks:
        rows = rows_of(first, last)
        if not first:
            out = rows.new_empty(chunks[-1][1], width)
        out[first:last] = rows
    return out


@dataclass(frozen=True, kw_only=True)
class InEdges:
    """All in-edges of one edge type: rows of a CSC matrix, by destination.

    Attributes:
        indptr: int64 [num_dst_nodes + 1].
        indices: int32 or int64 [num_edges], sources.
        src_degree: [num_src_nodes], edges out of each source; None counts `indices`. Not read where
            the graph has one type of edges, whose sources have the in-degrees of destinations.
        dst_degree: [num_dst_nodes], edges into each destination; None counts `indptr`.
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
        """int64 [2, num_edges], of the edges into some destinations.

        Args:
            local: numbers the sources; new ones get their numbers here. Destinations count from 0.
        """
        start, stop = int(self.indptr[first]), int(self.indptr[last])
        edge_index = np.empty((2, stop - start), np.int64)
        local.add(np.asarray(self.indices[start:stop]), edge_index[0])
        edge_index[1] = np.repeat(np.arange(last - first), np.diff(self.indptr[first : last + 1]))
        return edge_index

    def columns(self, first: int, last: int, device: torch.device) -> dict[str, Tensor]:
        """What encoders read of the edges into some destinations, on the device."""
        edges = slice(int(self.indptr[first]), int(self.indptr[last]))
        columns = {"edge_weight": self.edge_weight, "edge_attr": self.edge_attr}
        return {
            name: torch.tensor(rows[edges], device=device)
            for name, rows in columns.items()
            if rows is not None
        }


@dataclass(frozen=True, kw_only=True)
class ExactOptions:
    """Where and in what portions a whole graph is encoded.

    Attributes:
        device: where the layers are computed; the encoder is there already.
        chunk_size: rows on the device at a time, destinations and in-edges together. A node with
            more in-edges is a chunk of its own.
        compute: cuts the work among ranks, where there are several.
    Raises:
        ConfigError: `chunk_size` is less than 1.
    """

    device: torch.device = _CPU
    chunk_size: int = 30_000
    compute: RowComputation = compute_here

    def __post_init__(self) -> None:
        if self.chunk_size < 1:
            raise ConfigError(
                f"exact_inference.chunk_size={self.chunk_size!r} is invalid: it must be at least "
                "1. Set it to the number of rows that fit the device.",
                id="model-chunk-size",
            )


#: On the CPU, by one process.
IN_THIS_PROCESS = ExactOptions()


@torch.no_grad()
def exact_inference(
    encoder: Encoder,
    x_source: RowSource,
    in_edges: InEdges,
    options: ExactOptions = IN_THIS_PROCESS,
) -> Tensor:
    """Encodes every node from all of its in-edges.

    A layer is applied to the whole graph before the next one, so a node is computed once per layer
    however many others read it. Only the outputs of the layer before, and of all layers with
    `jump`, are held for all nodes, in CPU memory. The encoder runs in evaluation mode.

    Args:
        x_source: gives the feature rows of int64 node ids; called for a chunk at a time, so the
            features may be larger than memory.
    Returns:
        [num_nodes, out_channels] on the CPU.
    """
    builder = _BlockBuilder(in_edges, options.device)
    chunks = list(destination_chunks(in_edges.indptr, options.chunk_size))
    was_training = encoder.training
    encoder.eval()
    try:
        outputs: list[Tensor] = []
        for i in range(encoder.num_layers):
            layer = _Layer(encoder, i, _rows_of(outputs[-1]) if outputs else x_source, outputs)
            what = f"layer {i + 1} of {encoder.num_layers}"
            rows = options.compute(chunks, partial(layer.rows, builder), layer.width, what)
            if encoder.jump is None:
                outputs.clear()
            outputs.append(rows)
        return outputs[-1]
    finally:
        encoder.train(was_training)


@dataclass(frozen=True)
class _Layer:
    """A layer of an encoder, with what the layers before it gave for all nodes."""

    encoder: Encoder
    index: int
    x_source: RowSource
    outputs: Sequence[Tensor]

    @property
    def is_last(self) -> bool:
        return self.index == self.encoder.num_layers - 1

    @property
    def width(self) -> int:
        return self.encoder.out_channels if self.is_last else self.encoder.hidden_channels

    def rows(self, builder: _BlockBuilder, first: int, last: int) -> Tensor:
        """Rows of a range of nodes after this layer; after the last one, the encoder's output."""
        encoder, device = self.encoder, builder.device
        sources, block = builder.block(first, last)
        x_src = encoder.cast_input(rows_on(device, self.x_source(sources)))
        x = encoder.forward_layer(self.index, x_src, block.num_dst, block)
        if self.is_last:
            before = [h[first:last].to(device) for h in self.outputs if encoder.jump]
            x = encoder.readout([*before, x])
        return x.cpu()


def rows_on(device: torch.device, rows: np.ndarray | Features) -> Features:
    """What a row source gave, on the device."""
    return (rows if isinstance(rows, SparseFeatures) else torch.as_tensor(rows)).to(device)


def destination_chunks(indptr: np.ndarray, chunk_size: int) -> Iterator[tuple[int, int]]:
    """Cuts the nodes into ranges of at most `chunk_size` nodes and in-edges together.

    Yields:
        (first, last + 1) node, in order; a single node may exceed the size.
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


def _rows_of(rows: Tensor) -> RowSource:
    # On a CPU a fraction of the time of [].
    return lambda ids: rows.index_select(0, torch.from_numpy(ids))


class _BlockBuilder:
    """Builds the block of all in-edges of a range of nodes."""

    def __init__(self, edges: InEdges, device: torch.device) -> None:
        self.device = device
        self._edges = edges
        degree = np.diff(edges.indptr) if edges.dst_degree is None else edges.dst_degree
        self._degree = torch.as_tensor(degree).float()
        self._local = LocalIds()

    def block(self, first: int, last: int) -> tuple[np.ndarray, Block]:
        """Gives the sources' node ids, the destinations' first, and the block."""
        indptr = self._edges.indptr[first : last + 1]
        self._local.clear()
        self._local.add(np.arange(first, last), np.empty(last - first, np.int64))
        edge_index = self._edges.edge_index(first, last, self._local)
        sources = self._local.nodes.copy()
        block = Block(
            edge_index=torch.from_numpy(edge_index).to(self.device),
            dst_ptr=torch.from_numpy(indptr - indptr[0]).to(self.device),
            num_src=len(sources),
            num_dst=last - first,
            src_degree=self._degree[torch.from_numpy(sources)].to(self.device),
            dst_degree=self._degree[first:last].to(self.device),
            **self._edges.columns(first, last, self.device),
        )
        return sources, block
