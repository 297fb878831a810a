"""Terms beside the losses proper: each takes named inputs and gives a mean over the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raygnn.losses.base import in_full_precision


class EmbeddingL2(nn.Module):
    """Half the squared L2 norm of the embeddings, averaged over rows: the penalty of BPR.

    Source: arXiv:1205.2618, equation 5.
    """

    def forward(self, embeddings: Tensor) -> Tensor:
        """A scalar.

        Args:
            embeddings: [num_rows, channels], of the seeds, or of both ends of each link.
        """
        return in_full_precision(embeddings).square().sum() / (2 * embeddings.shape[0])


class WeightL1(nn.Module):
    """Sum of the absolute values of all trainable weights; weight decay is the optimizer's."""

    def forward(self, model: nn.Module) -> Tensor:
        """A scalar that does not depend on the batch."""
        sums = [in_full_precision(p).abs().sum() for p in model.parameters() if p.requires_grad]
        return torch.stack(sums).sum()
