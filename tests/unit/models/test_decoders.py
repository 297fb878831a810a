"""Decoders: both ways of scoring agree with the formula, and with each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raygnn.models import decoders
from raygnn.models.decoders import (
    ComplEx,
    Decoder,
    DistMult,
    HadamardMLP,
    InnerProduct,
)
from tests.errors import raises
from tests.unit.models.conftest import assert_same_with_grads

DECODERS: list[type[Decoder]] = [
    InnerProduct,
    HadamardMLP,
    DistMult,
    ComplEx,
]


def rows(num_rows: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, 6, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("chunk_numbers", [1 << 24, 50])
@pytest.mark.parametrize("decoder_type", DECODERS)
def test_scoring_all_is_scoring_each_pair(
    decoder_type: type[Decoder], chunk_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "_CHUNK_NUMBERS", chunk_numbers)
    decoder = decoder_type(6).double()
    anchors, candidates = rows(5, 0), rows(7, 1)
    every = decoder.score_all(anchors, candidates)
    pairs = decoder.score_pairs(anchors.repeat_interleave(7, dim=0), candidates.repeat(5, 1)).view(
        5, 7
    )
    assert_same_with_grads(every, pairs, [anchors, candidates, *decoder.parameters()])
    with torch.no_grad():
        torch.testing.assert_close(decoder.score_all(anchors, candidates), every)


@pytest.mark.parametrize("decoder_type", DECODERS)
def test_nothing_to_score_gives_nothing(decoder_type: type[Decoder]) -> None:
    decoder, some, none = decoder_type(6).double(), rows(3, 0), rows(0, 0)
    assert decoder.score_pairs(none, none).shape == (0,)
    assert decoder.score_all(some, none).shape == (3, 0)
    assert decoder.score_all(none, some).shape == (0, 3)


def test_formulas() -> None:
    anchors, targets = rows(4, 0), rows(4, 1)
    product = (anchors * targets).sum(1)
    torch.testing.assert_close(InnerProduct(6).score_pairs(anchors, targets), product)
    mlp = HadamardMLP(6, hidden_channels=3).double()
    expected = mlp.out(mlp.hidden(anchors * targets).relu())[:, 0]
    torch.testing.assert_close(mlp.score_pairs(anchors, targets), expected)
    # It starts as the inner product.
    torch.testing.assert_close(DistMult(6).double().score_pairs(anchors, targets), product)


def test_distmult_has_a_diagonal_per_relation() -> None:
    decoder = DistMult(6, num_relations=3).double()
    torch.nn.init.normal_(decoder.relation)
    anchors, targets = rows(4, 0), rows(4, 1)
    relation = torch.tensor([2, 0, 1, 2])
    expected = torch.stack(
        [anchors[i] @ decoder.relation[relation[i]].diag() @ targets[i] for i in range(4)]
    )
    torch.testing.assert_close(decoder.score_pairs(anchors, targets, relation), expected)
    every = decoder.score_all(anchors, targets, relation)
    torch.testing.assert_close(every.diagonal(), expected)
    torch.testing.assert_close(
        decoder.score_pairs(anchors, targets, 1),
        decoder.score_pairs(anchors, targets, torch.ones(4, dtype=torch.long)),
    )


def as_complex(numbers: Tensor) -> Tensor:
    return torch.complex(*numbers.chunk(2, dim=-1))


def test_complex_is_its_formula() -> None:
    anchors, targets, relation = rows(4, 0), rows(4, 1), torch.tensor([2, 0, 1, 2])
    decoder = ComplEx(6, 3).double()
    a, b = as_complex(anchors), as_complex(targets)
    scores = (a * as_complex(decoder.relation[relation]) * b.conj()).real.sum(1)
    torch.testing.assert_close(decoder.score_pairs(anchors, targets, relation), scores)
    every = decoder.score_all(anchors, targets, relation)
    torch.testing.assert_close(every.diagonal(), scores)
    with raises("model-num-relations", 3):
        decoder.score_all(anchors, targets, 3)


def test_wrong_arguments_are_named() -> None:
    with raises("model-complex-channels", "7 channels"):
        ComplEx(7)
    with raises("model-num-relations", 2):
        DistMult(6, 2).score_pairs(rows(1, 0), rows(1, 0), 2)
