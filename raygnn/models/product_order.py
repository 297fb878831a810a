"""Whether a layer multiplies by its weights before or after it sums over neighbors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block

# Summing one channel of one edge takes about as long as this many multiply-adds of a matrix
# product (on one CPU core: 20 GB/s of gathered float32, 75 G multiply-adds/s).
_EDGE_COST = 15


def transform_first(block: Block, in_channels: int, out_channels: int) -> bool:
    """Whether A (x W) takes less time than (A x) W, the same up to rounding.

    The first sums narrower rows where W narrows them, the second multiplies fewer: those of
    the destinations, not those of all sources.
    """
    weights = in_channels * out_channels
    first = block.num_src * weights + _EDGE_COST * block.num_edges * out_channels
    last = block.num_dst * weights + _EDGE_COST * block.num_edges * in_channels
    return first < last
