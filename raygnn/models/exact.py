"""Exact encoding of a whole graph, layer by layer, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from raygnn.errors import ConfigError
from raygnn.models.encoder import Encoder
from raygnn.models.sparse_input import Features
from raygnn.sampling.blocks import Block
from raygnn.sampling.protocols import EdgeValues
from raygnn.sampling.sparse_features import SparseFeatures

#: int64 ids -> features of these nodes.
RowSource = Callable[[np.ndarray], np.ndarray | Features]


class RowComputation(Protocol):
    """Who computes the rows of all nodes, chunk by chunk, and where they are held."""

    def __call__(
        self,
        chunks: Sequence[tuple[int, int]],
        rows_of: Callable[[int, int], Tensor],
        width: int,
    ) -> Tensor:
        """Gives the rows of all chunks together.

        Args:
            chunks: (first, last + 1) row, in order and without gaps.
            rows_of: computes [last - first, width] on the CPU.
        Returns:
            [num_rows, width] on the CPU.
        """


def compute_here(
    chunks: Sequence[tuple[int, int]], rows_of: Callable[[int, int], Tensor], width: int
) -> Tensor:
    """Computes all chunks in this process, and holds the rows in its memory."""
    parts = [rows_of(first, last) for first, last in chunks]
    return torch.cat(parts) if parts else torch.zeros(0, width)


class InEdges(NamedTuple):
    """The in-edges of all nodes: rows of a CSC matrix, by destination.

    Attributes:
        indptr: int64 [num_nodes + 1].
        indices: int32 or int64 [num_edges], sources.
    """

    indptr: np.ndarray
    indices: EdgeValues


@torch.no_grad()
def exact_inference(
    encoder: Encoder,
    x_source: RowSource,
    csc: tuple[np.ndarray, EdgeValues],
    degrees: np.ndarray | Tensor | None = None,
    *,
    edge_weight: EdgeValues | None = None,
    edge_attr: EdgeValues | None = None,
    device: torch.device | str = "cpu",
    chunk_size: int = 100_000,
    compute: RowComputation = compute_here,
) -> Tensor:
    """Encodes every node from all of its in-edges.

    A layer is applied to the whole graph before the next one, so a node is computed once per layer
    however many others read it. Only the outputs of the layer before, and of all layers with
    `jump`, are held for all nodes, in CPU memory. The encoder runs in evaluation mode.

    Args:
        x_source: gives the feature rows of int64 node ids; called for a chunk at a time, so the
            features may be larger than memory.
        csc: (indptr, indices) of all in-edges by destination.
        degrees: [num_nodes], in-degrees as the blocks of batches carry them; None counts `csc`.
        edge_weight: [num_edges] in the order of `csc`, for encoders that read it.
        edge_attr: [num_edges, edge_dim] in the order of `csc`, for encoders that read it.
        device: where the layers are computed; the encoder is there already.
        chunk_size: rows on the device at a time, destinations and in-edges together. A node with
            more in-edges is a chunk of its own.
        compute: cuts the work among ranks, where there are several.
    Returns:
        [num_nodes, out_channels] on the CPU.
    Raises:
        ConfigError: `chunk_size` is less than 1.
    """
    if chunk_size < 1:
        raise ConfigError(
            f"exact_inference.chunk_size={chunk_size!r} is invalid: it must be at least 1. Set it "
            f"to the number of rows that fit the device.",
            id="model-chunk-size",
        )
    edges = InEdges(*csc)
    degree = torch.as_tensor(np.diff(edges.indptr) if degrees is None else degrees).float()
    columns = {"edge_weight": edge_weight, "edge_attr": edge_attr}
    builder = _BlockBuilder(edges, degree, columns, torch.device(device))
    was_training = encoder.training
    encoder.eval()
    try:
        return _encode_all(encoder, x_source, builder, chunk_size, compute)
    finally:
        encoder.train(was_training)


def _encode_all(
    encoder: Encoder,
    x_source: RowSource,
    builder: _BlockBuilder,
    chunk_size: int,
    compute: RowComputation,
) -> Tensor:
    chunks = list(destination_chunks(builder.edges.indptr, chunk_size))
    outputs: list[Tensor] = []
    for i in range(encoder.num_layers):
        is_last = i == encoder.num_layers - 1
        apply = partial(_apply_layer, encoder, x_source, builder, outputs, i, is_last)
        rows = compute(chunks, apply, encoder.out_channels if is_last else encoder.hidden_channels)
        if encoder.jump is None:
            outputs.clear()
        outputs.append(rows)
    return outputs[-1]


def _apply_layer(
    encoder: Encoder,
    x_source: RowSource,
    builder: _BlockBuilder,
    outputs: Sequence[Tensor],
    i: int,
    is_last: bool,
    first: int,
    last: int,
) -> Tensor:
    """Rows of a range of nodes after layer i; after the last one, the encoder's output."""
    rows_of = x_source if i == 0 else _rows_of(outputs[-1])
    sources, block = builder.block(first, last)
    x_src = encoder.cast_input(rows_on(builder.device, rows_of(sources)))
    x = encoder.forward_layer(i, x_src, block.num_dst, block)
    if is_last:
        before = [h[first:last].to(builder.device) for h in outputs if encoder.jump]
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
    return lambda ids: rows[torch.from_numpy(ids)]


class _BlockBuilder:
    """Builds the block of all in-edges of a range of nodes."""

    def __init__(
        self,
        edges: InEdges,
        degree: Tensor,
        columns: Mapping[str, EdgeValues | None],
        device: torch.device,
    ) -> None:
        self.edges = edges
        self.device = device
        self._degree = degree
        self._columns = {name: rows for name, rows in columns.items() if rows is not None}
        self._local = np.empty(len(edges.indptr) - 1, dtype=np.int64)

    def block(self, first: int, last: int) -> tuple[np.ndarray, Block]:
        """Gives the sources' node ids, the destinations' first, and the block."""
        indptr = self.edges.indptr
        start, stop = int(indptr[first]), int(indptr[last])
        neighbors = np.asarray(self.edges.indices[start:stop], dtype=np.int64)
        outside = np.unique(neighbors[(neighbors < first) | (neighbors >= last)])
        sources = np.concatenate([np.arange(first, last), outside])
        self._local[sources] = np.arange(len(sources))
        num_in_edges = np.diff(indptr[first : last + 1])
        edge_index = np.stack(
            [self._local[neighbors], np.repeat(np.arange(last - first), num_in_edges)]
        )
        columns = {
            name: torch.tensor(rows[start:stop], device=self.device)
            for name, rows in self._columns.items()
        }
        block = Block(
            edge_index=torch.from_numpy(edge_index).to(self.device),
            dst_ptr=torch.from_numpy(indptr[first : last + 1] - start).to(self.device),
            num_src=len(sources),
            num_dst=last - first,
            src_degree=self._degree[torch.from_numpy(sources)].to(self.device),
            dst_degree=self._degree[first:last].to(self.device),
            **columns,
        )
        return sources, block
