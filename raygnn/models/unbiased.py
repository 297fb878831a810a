"""Neighbor sums from a sample of the neighbors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from raygnn.sampling.blocks import Block


def scale_sampled(neighbor_sum: Tensor, block: Block) -> Tensor:
    """Scales each destination's sum over its sampled in-edges by (in-degree / in-edges sampled).

    Uniform sampling, with or without replacement, takes each in-edge equally often, so the expected
    value of the scaled sum is the sum over all in-edges. Where all were taken the factor is 1.
    Draws by weight take some more often, and the others make up for links that a batch leaves out.

    Args:
        neighbor_sum: [num_dst, channels].
    """
    num_sampled = (block.dst_ptr[1:] - block.dst_ptr[:-1]).clamp(min=1)
    dtype = torch.promote_types(neighbor_sum.dtype, torch.float32)
    factor = block.dst_degree.to(dtype) / num_sampled
    return neighbor_sum * factor.to(neighbor_sum.dtype).unsqueeze(-1)
