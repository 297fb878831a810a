"""Decoders: from the embeddings of two nodes to the score of a link between them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from raygnn.errors import ConfigError
from raygnn.models.arguments import check_positive

# Numbers that the hidden layer of a chunk of `HadamardMLP.score_all` may hold: 64 MB of float32.
_CHUNK_NUMBERS = 1 << 24


class Decoder(nn.Module, ABC):
    """Scores links; a larger score is a likelier link.

    Args:
        in_channels: width of an embedding.
        num_relations: kinds of link that it distinguishes, where it does.
    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(self, in_channels: int, num_relations: int = 1) -> None:
        super().__init__()
        check_positive(in_channels=in_channels, num_relations=num_relations)
        self.in_channels = in_channels
        self.num_relations = num_relations

    @abstractmethod
    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """Scores each anchor with the target beside it.

        Args:
            anchor_rows: [num_pairs, in_channels].
            target_rows: [num_pairs, in_channels].
            relation: of all pairs, or int64 [num_pairs]; only read by decoders that tell apart
                relations.
        Returns:
            [num_pairs].
        """

    @abstractmethod
    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """Scores each anchor with every candidate.

        Args:
            anchor_rows: [num_anchors, in_channels].
            candidate_rows: [num_candidates, in_channels].
            relation: of all anchors, or int64 [num_anchors].
        Returns:
            [num_anchors, num_candidates].
        """

    def squared_moduli(self, rows: Tensor) -> Tensor:
        """Squares of the numbers in rows [num_rows, in_channels], or of complex numbers' moduli."""
        return rows.square()

    def relation_rows(self, relation: Tensor | int) -> Tensor | None:
        """[num_pairs, in_channels] or [in_channels], the learned rows of relations.

        None where there are none, or none whose length a penalty could change.
        """
        return None

    def check_relation(self, relation: Tensor | int) -> None:
        """Checks that there are parameters for a relation.

        Raises:
            ConfigError: there are not.
        """
        if isinstance(relation, int) and not 0 <= relation < self.num_relations:
            raise ConfigError(
                f"task.args.decoder.args.num_relations={self.num_relations!r} is invalid: relation "
                f"{relation} was asked for. Set it to the number of relations.",
                id="model-num-relations",
            )


class RelationRows(Decoder):
    """A decoder with a learned row for each relation.

    Attributes:
        relation: [num_relations, in_channels]; subclasses create it.
    """

    relation: nn.Parameter

    def relation_rows(self, relation: Tensor | int) -> Tensor:
        """See `Decoder`."""
        self.check_relation(relation)
        return self.relation[relation]


class InnerProduct(Decoder):
    """The scalar product of the two embeddings."""

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return (anchor_rows * target_rows).sum(dim=-1)

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return anchor_rows @ candidate_rows.T


class Cosine(Decoder):
    """The cosine of the angle between the two embeddings, in [-1, 1]."""

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return (_unit(anchor_rows) * _unit(target_rows)).sum(dim=-1)

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return _unit(anchor_rows) @ _unit(candidate_rows).T


class DistMult(RelationRows):
    """Embedding Entities and Relations, arXiv:1412.6575: sum_c anchor_c relation_c target_c.

    A diagonal matrix per relation, which starts as the identity: then it is the inner product.
    """

    def __init__(self, in_channels: int, num_relations: int = 1) -> None:
        super().__init__(in_channels, num_relations)
        self.relation = nn.Parameter(torch.ones(num_relations, in_channels))

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return (self._scaled(anchor_rows, relation) * target_rows).sum(dim=-1)

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        return self._scaled(anchor_rows, relation) @ candidate_rows.T

    def _scaled(self, anchor_rows: Tensor, relation: Tensor | int) -> Tensor:
        return anchor_rows * self.relation_rows(relation)


class HadamardMLP(Decoder):
    """A perceptron with one hidden layer on the elementwise product of the two embeddings.

    Args:
        in_channels: width of an embedding.
        hidden_channels: width of the hidden layer; None takes `in_channels`.
    """

    def __init__(
        self, in_channels: int, num_relations: int = 1, hidden_channels: int | None = None
    ) -> None:
        super().__init__(in_channels, num_relations)
        hidden_channels = in_channels if hidden_channels is None else hidden_channels
        check_positive(hidden_channels=hidden_channels)
        self.hidden = nn.Linear(in_channels, hidden_channels)
        self.out = nn.Linear(hidden_channels, 1)

    def score_pairs(
        self, anchor_rows: Tensor, target_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`."""
        out: Tensor = self.out(self.hidden(anchor_rows * target_rows).relu()).squeeze(-1)
        return out

    def score_all(
        self, anchor_rows: Tensor, candidate_rows: Tensor, relation: Tensor | int = 0
    ) -> Tensor:
        """See `Decoder`. Holds the hidden layers of a chunk of anchors at a time, in training too.

        They are computed again in the backward pass.
        """
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


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=-1)
