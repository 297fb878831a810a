"""Decoders of knowledge graphs whose rows are complex numbers, or points that relations move."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from raygnn.errors import ConfigError
from raygnn.models.decoders import Decoder, RelationRows

# Of a squared distance: the root of 0 has no gradient.
_SMALLEST_SQUARE = 1e-12


class _ComplexRows(Decoder):
    """The first half of a row is the real parts, the second half the imaginary parts."""

    def squared_moduli(self, rows: Tensor) -> Tensor:
        """See `Decoder`; [num_rows, in_channels / 2]."""
        real, imaginary = rows.chunk(2, dim=-1)
        return real.square() + imaginary.square()


class ComplEx(_ComplexRows, RelationRows):
    """Complex Embeddings for Simple Link Prediction, arXiv:1606.06357, equation 11.

    Re(sum_c anchor_c relation_c conj(target_c)). The first half of a row is the real parts, the
    second half the imaginary parts.

    Raises:
        ConfigError: `in_channels` is odd.
    """

    def __init__(self, in_channels: int, num_relations: int = 1) -> None:
        super().__init__(in_channels, num_relations)
        _check_even("complex", in_channels)
        self.relation = nn.Parameter(torch.empty(num_relations, in_channels))
        nn.init.normal_(self.relation, std=in_channels**-0.5)  # as rows of nodes

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return (_product(anchor_rows, self.relation_rows(relation)) * target_rows).sum(dim=-1)

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return _product(anchor_rows, self.relation_rows(relation)) @ candidate_rows.T


class _Distance(Decoder):
    """Scores by the distance of the target from the point that the relation moves the anchor to.

    The distance is Euclidean: those of all pairs take one product of matrices, where the sum of
    moduli would take num_anchors * num_candidates * in_channels numbers.

    Args:
        margin: score of a distance of 0. A softmax does not read it, a binary cross-entropy does.
    """

    def __init__(self, in_channels: int, num_relations: int = 1, margin: float = 9.0) -> None:
        super().__init__(in_channels, num_relations)
        self.margin = margin

    @abstractmethod
    def moved(self, anchor_rows: Tensor, relation: Tensor | int) -> Tensor:
        """Where the relation moves the anchors; [num_anchors, in_channels]."""

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        square = (self.moved(anchor_rows, relation) - target_rows).square().sum(dim=-1)
        return self.margin - square.clamp(min=_SMALLEST_SQUARE).sqrt()

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        moved = self.moved(anchor_rows, relation)
        lengths = candidate_rows.square().sum(dim=-1)
        square = torch.addmm(lengths, moved, candidate_rows.T, alpha=-2)
        square = square + moved.square().sum(dim=-1, keepdim=True)
        return self.margin - square.clamp(min=_SMALLEST_SQUARE).sqrt()


class TransE(RelationRows, _Distance):
    """Translating Embeddings (Bordes et al., NeurIPS 2013): margin - |anchor + relation - target|.

    The distance is Euclidean.

    Args:
        margin: score of a distance of 0. A softmax does not read it, a binary cross-entropy does.
    """

    def __init__(self, in_channels: int, num_relations: int = 1, margin: float = 9.0) -> None:
        super().__init__(in_channels, num_relations, margin)
        self.relation = nn.Parameter(torch.empty(num_relations, in_channels))
        nn.init.normal_(self.relation, std=in_channels**-0.5)  # as rows of nodes

    def moved(self, anchor_rows: Tensor, relation: Tensor | int) -> Tensor:
        """See `_Distance`."""
        return anchor_rows + self.relation_rows(relation)


class RotatE(_ComplexRows, _Distance):
    """RotatE, arXiv:1902.10197: margin - |anchor * relation - target|, relations of modulus 1.

    The first half of a row is the real parts, the second half the imaginary parts. The distance is
    Euclidean, where the paper sums moduli.

    Args:
        margin: score of a distance of 0. A softmax does not read it, a binary cross-entropy does.
    Raises:
        ConfigError: `in_channels` is odd.
    """

    def __init__(self, in_channels: int, num_relations: int = 1, margin: float = 9.0) -> None:
        super().__init__(in_channels, num_relations, margin)
        _check_even("rotate", in_channels)
        self.phase = nn.Parameter(torch.empty(num_relations, in_channels // 2))
        nn.init.uniform_(self.phase, -math.pi, math.pi)

    def moved(self, anchor_rows: Tensor, relation: Tensor | int) -> Tensor:
        """See `_Distance`."""
        self.check_relation(relation)
        phase = self.phase[relation]
        return _product(anchor_rows, torch.cat([phase.cos(), phase.sin()], dim=-1))


def _product(rows: Tensor, relation_rows: Tensor) -> Tensor:
    """Products of complex numbers; [num_rows, in_channels]."""
    real, imaginary = rows.chunk(2, dim=-1)
    of_real, of_imaginary = relation_rows.chunk(2, dim=-1)
    return torch.cat(
        [
            real * of_real - imaginary * of_imaginary,
            real * of_imaginary + imaginary * of_real,
        ],
        dim=-1,
    )


def _check_even(name: str, in_channels: int) -> None:
    if in_channels % 2:
        raise ConfigError.invalid(
            "task.args.decoder.type",
            name,
            (f"it reads rows of complex numbers, and embeddings have {in_channels} channels"),
            "Set model.args.out_channels to an even number",
            id="model-complex-channels",
        )
