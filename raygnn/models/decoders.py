"""Decoders: scores of links from embeddings, and the best candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raygnn.errors import ConfigError, DataError

# Numbers that the hidden layer of a chunk of `HadamardMLP.score_all` may hold: 64 MB of float32.
_CHUNK_NUMBERS = 1 << 24


class Decoder(nn.Module, ABC):
    """Scores links. A higher score is a likelier link.

    Args:
        in_channels: width of an embedding.
        num_relations: number of relations, for decoders that distinguish them.
    """

    def __init__(self, in_channels: int, num_relations: int = 1) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.num_relations = num_relations

    @abstractmethod
    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """Scores each anchor with the target in the same row: [num_pairs].

        Args:
            anchor_rows, target_rows: [num_pairs, in_channels].
            relation: of all pairs, or int64 [num_pairs]. Ignored by decoders without relations.
        """

    @abstractmethod
    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """Scores each anchor with every candidate: [num_anchors, num_candidates].

        Args:
            anchor_rows: [num_anchors, in_channels].
            candidate_rows: [num_candidates, in_channels].
            relation: of all anchors, or int64 [num_anchors].
        """

    def squared_moduli(self, rows: Tensor) -> Tensor:
        """Squares of rows, [num_rows, in_channels], or squared moduli of complex numbers."""
        return rows.square()

    def relation_rows(self, relation: Tensor | int) -> Tensor | None:
        """Learned rows of relations, [num_pairs, in_channels] or [in_channels].

        None if there are none, or if a penalty cannot change their length.
        """
        return None

    def check_relation(self, relation: Tensor | int) -> None:
        """Raises a ConfigError if the decoder has no parameters for a relation."""
        if isinstance(relation, int) and not 0 <= relation < self.num_relations:
            raise ConfigError(
                f"task.args.decoder.args.num_relations={self.num_relations!r} is invalid: relation "
                f"{relation} is requested. Set it to the number of relations. [model-num-relations]"
            )


class RelationRows(Decoder):
    """A decoder with a learned row per relation.

    Attributes:
        relation: [num_relations, in_channels], created by subclasses.
    """

    relation: nn.Parameter

    def relation_rows(self, relation: Tensor | int) -> Tensor:
        self.check_relation(relation)
        return self.relation[relation]


class _Product(Decoder):
    def moved(self, anchor_rows: Tensor, relation: Tensor | int) -> Tensor:
        """Anchors transformed by the relation, [num_anchors, in_channels]."""
        return anchor_rows

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        return (self.moved(anchor_rows, relation) * target_rows).sum(dim=-1)

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        return self.moved(anchor_rows, relation) @ candidate_rows.T


class InnerProduct(_Product):
    """The scalar product of the two embeddings."""


class DistMult(RelationRows, _Product):
    """Embedding Entities and Relations, arXiv:1412.6575: sum_c anchor_c relation_c target_c.

    A diagonal matrix per relation. It starts as the identity, which gives the inner product.
    """

    def __init__(self, in_channels: int, num_relations: int = 1) -> None:
        super().__init__(in_channels, num_relations)
        self.relation = nn.Parameter(torch.ones(num_relations, in_channels))

    def moved(self, anchor_rows: Tensor, relation: Tensor | int) -> Tensor:
        return anchor_rows * self.relation_rows(relation)


class HadamardMLP(Decoder):
    """A perceptron with one hidden layer on the elementwise product of the two embeddings.

    Args:
        hidden_channels: width of the hidden layer. Default: `in_channels`.
    """

    def __init__(
        self, in_channels: int, num_relations: int = 1, hidden_channels: PositiveInt | None = None
    ) -> None:
        super().__init__(in_channels, num_relations)
        hidden_channels = in_channels if hidden_channels is None else hidden_channels
        self.hidden = nn.Linear(in_channels, hidden_channels)
        self.out = nn.Linear(hidden_channels, 1)

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        out: Tensor = self.out(self.hidden(anchor_rows * target_rows).relu()).squeeze(-1)
        return out

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        # Holds the hidden layers of a chunk of anchors at a time, in training too, where they are
        # computed again in the backward pass.
        hidden_numbers = candidate_rows.shape[0] * self.hidden.out_features
        size = max(1, _CHUNK_NUMBERS // max(hidden_numbers, 1))
        chunks = anchor_rows.split(size)
        if len(chunks) == 1:
            return self._score_chunk(anchor_rows, candidate_rows)
        return torch.cat(
            [
                checkpoint(self._score_chunk, chunk, candidate_rows, use_reentrant=False)
                if torch.is_grad_enabled()
                else self._score_chunk(chunk, candidate_rows)
                for chunk in chunks
            ]
        )

    def _score_chunk(self, anchor_rows: Tensor, candidate_rows: Tensor) -> Tensor:
        # (anchor * candidate) W^T = candidate (anchor * W)^T: the products are never formed.
        weight = anchor_rows.unsqueeze(1) * self.hidden.weight
        hidden = (candidate_rows @ weight.transpose(1, 2) + self.hidden.bias).relu()
        out: Tensor = self.out(hidden).squeeze(-1)
        return out


class ComplEx(RelationRows, _Product):
    """Complex Embeddings for Simple Link Prediction, arXiv:1606.06357, equation 11.

    Re(sum_c anchor_c relation_c conj(target_c)). The first half of a row is the real parts, the
    second half the imaginary parts.

    Raises:
        ConfigError: `in_channels` is odd.
    """

    def __init__(self, in_channels: int, num_relations: int = 1) -> None:
        super().__init__(in_channels, num_relations)
        if in_channels % 2:
            key, rule = (
                "task.args.decoder.type",
                f"it reads rows of complex numbers, and embeddings have {in_channels} channels",
            )
            remedy = "Set model.args.out_channels to an even number"
            raise ConfigError.invalid(key, "complex", rule, remedy, id="model-complex-channels")
        self.relation = nn.Parameter(torch.empty(num_relations, in_channels))
        nn.init.normal_(self.relation, std=in_channels**-0.5)  # as rows of nodes

    def squared_moduli(self, rows: Tensor) -> Tensor:
        real, imaginary = rows.chunk(2, dim=-1)
        return real.square() + imaginary.square()

    def moved(self, anchor_rows: Tensor, relation: Tensor | int) -> Tensor:
        real, imaginary = anchor_rows.chunk(2, dim=-1)
        of_real, of_imaginary = self.relation_rows(relation).chunk(2, dim=-1)
        return torch.cat(
            [real * of_real - imaginary * of_imaginary, real * of_imaginary + imaginary * of_real],
            dim=-1,
        )


# Scores that are held at a time, 32 MB of float64, and candidates.
_MAX_SCORES = 1 << 22
_MAX_CANDIDATES = 1 << 16

#: (anchors, candidates) -> [num_anchors, num_candidates], as `Decoder.score_all`.
Scores = Callable[[Tensor, Tensor], Tensor]
#: (first, last + 1) candidate -> bool [num_anchors, last - first], candidates to leave out.
LeftOut = Callable[[int, int], Tensor]


def top_k(
    anchors: Tensor,
    candidates: Callable[[int, int], Tensor],
    num_candidates: int,
    k: int,
    scores: Scores,
    left_out: LeftOut | None = None,
) -> tuple[Tensor, Tensor]:
    """Finds the k best-scored candidates of each anchor. Equal scores are ordered by position.

    Scores are computed in float64 and compared in float32, so they do not depend on the blocks of
    the matrix product, and equal embeddings have equal scores.

    Args:
        anchors: [num_anchors, channels].
        candidates: returns rows [first, last) as [last - first, channels] on the anchors' device.
        k: at most `num_candidates`.
        scores: computes scores from float64 rows.
    Returns:
        float32 scores and int64 positions, [num_anchors, k], best first. -inf marks missing
        candidates if too many are left out.
    Raises:
        DataError: a score is NaN.
    """
    rows = anchors.double()
    best = rows.new_empty(len(rows), 0, dtype=torch.float32)
    places = rows.new_empty(len(rows), 0, dtype=torch.int64)
    size = min(max(_MAX_SCORES // max(len(rows), 1), 1), _MAX_CANDIDATES)
    for first in range(0, num_candidates, size):
        last = min(first + size, num_candidates)
        new_scores = scores(rows, candidates(first, last).double()).float()
        if new_scores.isnan().any():
            raise DataError(
                "the model returns scores that are not numbers. Check the features of the graph "
                "for extreme values, and the metrics of the model. [infer-not-finite]"
            )
        if left_out is not None:
            new_scores = new_scores.masked_fill(left_out(first, last), -torch.inf)
        here = torch.arange(first, last, device=rows.device).expand(len(rows), -1)
        best, places = torch.cat([best, new_scores], dim=1), torch.cat([places, here], dim=1)
        if best.shape[1] > k:
            columns = _kept(best, k)
            best, places = best.gather(1, columns), places.gather(1, columns)
    order = best.argsort(dim=1, descending=True, stable=True)
    return best.gather(1, order), places.gather(1, order)


def _kept(scores: Tensor, k: int) -> Tensor:
    least = scores.topk(k, dim=1).values[:, -1:]
    above, equal = scores > least, scores == least
    room = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1) <= room))
    return chosen.nonzero()[:, 1].view(len(scores), k)
