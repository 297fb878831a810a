"""Losses of links against their formulas, and the candidates that compete."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from raygnn.losses import (
    BPR,
    N3,
    Candidates,
    DirectAU,
    LinkBinaryCrossEntropy,
    LinkLoss,
    LinkScores,
    Margin,
    Retrieval,
    SoftmaxOwnNegatives,
    score_links,
)
from raygnn.models.decoders import ComplEx, Decoder, DistMult, InnerProduct
from tests.errors import raises

LOSSES: dict[str, Callable[[], LinkLoss]] = {
    "retrieval": partial(Retrieval, temperature=0.07),
    "softmax": partial(SoftmaxOwnNegatives, temperature=0.07),
    "margin": Margin,
    "bpr": BPR,
    "link_binary_cross_entropy": LinkBinaryCrossEntropy,
}


def random_scores(log_q: bool = False) -> LinkScores:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(6, 9, generator=generator) < 0.3
    mask[2] = True  # a positive without any candidate
    return LinkScores(
        positive=torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_(),
        candidate=torch.randn(6, 9, generator=generator, dtype=torch.float64).requires_grad_(),
        mask=mask,
        log_q=torch.randn(9, generator=generator) if log_q else None,
    )


def softmax_term(positive: Tensor, candidates: Tensor) -> Tensor:
    every = torch.cat([positive.view(1), candidates]) / 0.07
    return functional.cross_entropy(every.view(1, -1), torch.tensor([0]))


def bce_term(positive: Tensor, candidates: Tensor) -> Tensor:
    bce = functional.binary_cross_entropy_with_logits
    of_positive = bce(positive, torch.ones_like(positive))
    if not len(candidates):
        return of_positive / 2
    return (of_positive + bce(candidates, torch.zeros_like(candidates))) / 2


def bpr_term(positive: Tensor, candidates: Tensor) -> Tensor:
    return -functional.logsigmoid(positive - candidates).sum() / max(len(candidates), 1)


def margin_term(positive: Tensor, candidates: Tensor) -> Tensor:
    return (0.5 - positive + candidates).clamp(min=0).sum() / max(len(candidates), 1)


TERMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "retrieval": softmax_term,
    "softmax": softmax_term,
    "margin": margin_term,
    "bpr": bpr_term,
    "link_binary_cross_entropy": bce_term,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_sum_their_formula_over_positives(name: str) -> None:
    scores = random_scores()
    loss_sum, weight = LOSSES[name]()(scores)
    expected = sum(
        TERMS[name](positive, row[~masked])
        for positive, row, masked in zip(
            scores.positive, scores.candidate, scores.mask, strict=True
        )
    )
    torch.testing.assert_close(loss_sum, expected)
    assert weight == 6
    inputs = [scores.positive, scores.candidate]
    got = torch.autograd.grad(loss_sum, inputs)
    for mine, other in zip(got, torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, other)
    assert not got[1][scores.mask].any()


@pytest.mark.parametrize("name", LOSSES)
def test_masked_scores_are_not_read(name: str) -> None:
    scores = random_scores()
    for bad in (math.inf, math.nan):
        candidate = scores.candidate.detach().masked_fill(scores.mask, bad).requires_grad_()
        loss_sum, _ = LOSSES[name]()(replace(scores, candidate=candidate))
        assert torch.equal(loss_sum, LOSSES[name]()(scores)[0])
        (grad,) = torch.autograd.grad(loss_sum, [candidate])
        assert grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_without_positives_weighs_nothing(name: str) -> None:
    none = torch.empty(0, requires_grad=True)
    empty = LinkScores(
        positive=none, candidate=none.view(0, 1).expand(0, 3), mask=torch.empty(0, 3).bool()
    )
    loss_sum, weight = LOSSES[name]()(empty)
    assert float(loss_sum.detach()) == 0
    assert weight == 0
    loss_sum.backward()


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_scores_are_summed_in_full(name: str) -> None:
    scores = random_scores()
    positive, candidate = scores.positive.bfloat16(), scores.candidate.bfloat16()
    half = replace(scores, positive=positive, candidate=candidate)
    full = replace(scores, positive=positive.float(), candidate=candidate.float())
    loss_sum, _ = LOSSES[name]()(half)
    assert loss_sum.dtype == torch.float32
    assert torch.equal(loss_sum, LOSSES[name]()(full)[0])


@pytest.mark.parametrize("name", LOSSES)
def test_rows_of_given_candidates_add_up(name: str) -> None:
    # True of all losses on the same rows; in-batch candidates change with the cut.
    scores, loss = random_scores(), LOSSES[name]()
    parts = []
    for cut in (slice(0, 4), slice(4, 6)):
        positive, candidate, mask = scores.positive[cut], scores.candidate[cut], scores.mask[cut]
        parts.append(loss(LinkScores(positive=positive, candidate=candidate, mask=mask))[0])
    torch.testing.assert_close(parts[0] + parts[1], loss(scores)[0])
    assert loss.in_batch == (name == "retrieval")
    assert loss.candidates == "rank"


def test_candidates_that_are_all_nodes_once_give_the_full_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 20, generator=generator)
    target = torch.randint(20, (5,), generator=generator)
    scores = LinkScores(
        positive=logits.gather(1, target.view(-1, 1))[:, 0],
        candidate=logits,
        mask=target.view(-1, 1) == torch.arange(20),
        log_q=torch.zeros(20),
    )
    loss_sum, _ = Retrieval(temperature=1.0)(scores)
    expected = functional.cross_entropy(logits, target, reduction="sum")
    torch.testing.assert_close(loss_sum, expected)


def test_log_q_takes_the_bias_of_drawing_from_the_sum_over_candidates() -> None:
    generator = torch.Generator().manual_seed(0)
    num_nodes, num_draws, num_rounds = 8, 5, 4000
    logits = torch.randn(num_nodes, generator=generator, dtype=torch.float64)
    q = torch.rand(num_nodes, generator=generator, dtype=torch.float64)
    q /= q.sum()
    drawn = torch.multinomial(q, num_rounds * num_draws, replacement=True, generator=generator)
    totals = []
    for ids in drawn.view(num_rounds, num_draws):
        scores = LinkScores(
            positive=logits[:1],
            candidate=logits[ids].view(1, -1),
            mask=ids.view(1, -1) == 0,
            log_q=(num_draws * q[ids]).log(),
        )
        loss_sum, _ = Retrieval(temperature=1.0)(scores)
        totals.append((loss_sum + logits[0]).exp())
    assert float(torch.stack(totals).mean()) == pytest.approx(float(logits.exp().sum()), rel=0.02)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_softmax_of_many_chunks_is_that_of_torch_whatever_the_scale(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (300, 1000)  # more than two chunks
    mask = torch.rand(shape, generator=generator) < 0.1
    mask[7] = True
    log_q = torch.randn(shape[1], generator=generator)
    inputs = [
        (scale * torch.randn(size, generator=generator)).requires_grad_()
        for size in (shape[:1], shape)
    ]
    weight = torch.rand((), generator=generator)
    scores = LinkScores(positive=inputs[0], candidate=inputs[1], mask=mask, log_q=log_q)
    loss_sum, _ = Retrieval(temperature=0.5)(scores)
    (weight * loss_sum).backward()
    plain = [each.detach().double().requires_grad_() for each in inputs]
    logits = (plain[1] / 0.5 - log_q).masked_fill(mask, -math.inf)
    every = torch.cat([plain[0].unsqueeze(1) / 0.5, logits], dim=1)
    expected = functional.cross_entropy(every, torch.zeros(300, dtype=torch.int64), reduction="sum")
    (weight * expected).backward()
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-5)
    for ours, theirs in zip(inputs, plain, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=1e-4, atol=1e-6)
    assert torch.equal(inputs[1].grad[mask], torch.zeros(int(mask.sum())))


def test_scores_have_to_fit_each_other() -> None:
    good = random_scores()
    for changes, words in (
        ({"mask": good.mask[:, :8]}, ("mask", "6, 8", "6, 9")),
        ({"positive": good.positive[:5]}, ("candidate", "6, 9")),
        ({"log_q": torch.ones(2)}, ("log_q", 2, 9)),
        ({"mask": good.mask.long()}, ("torch.int64",)),
    ):
        with raises("loss-link-scores", *words):
            replace(good, **changes)


def test_direct_au_is_alignment_plus_uniformity():
    draw = torch.Generator().manual_seed(0)
    anchors, targets = (torch.randn(7, 4, generator=draw) for _ in range(2))
    one, other = functional.normalize(anchors), functional.normalize(targets)
    uniform = [torch.pdist(x).square().mul(-2).exp().mean().log() for x in (one, other)]
    expected = (one - other).square().sum(1).mean() + 0.5 * (uniform[0] + uniform[1]) / 2
    found = DirectAU(uniformity=0.5)(3 * anchors, targets)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    alone = DirectAU()(anchors[:1], targets[:1])
    assert float(alone) == pytest.approx(float((one - other)[0].square().sum()), rel=1e-5)


@pytest.mark.parametrize("loss_type", [partial(SoftmaxOwnNegatives, 0.7), LinkBinaryCrossEntropy])
def test_scores_of_queries_give_what_those_of_each_link_give(loss_type) -> None:
    scores, query = random_scores(), torch.tensor([3, 0, 2, 0, 5, 3, 1])
    generator = torch.Generator().manual_seed(1)
    positive = torch.randn(7, generator=generator, dtype=torch.float64).requires_grad_()
    grouped = replace(scores, positive=positive, query=query)
    loss, each = loss_type(), grouped.by_positive()
    assert loss.by_query
    assert each.query is None
    assert each.candidate.shape == (7, 9)
    found, expected = loss(grouped), loss(each)
    assert found[1] == expected[1] == 7
    torch.testing.assert_close(found[0], expected[0])
    inputs = [positive, scores.candidate]
    for mine, other in zip(
        torch.autograd.grad(found[0], inputs), torch.autograd.grad(expected[0], inputs), strict=True
    ):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("decoder_type", [ComplEx, DistMult, InnerProduct])
def test_n3_is_the_mean_of_cubed_moduli(decoder_type: type[Decoder]) -> None:
    decoder = decoder_type(4, 3).double()
    model = SimpleNamespace(decoder=decoder)
    anchors, targets = torch.randn(2, 5, 4, dtype=torch.float64)
    relation = torch.tensor([0, 2, 2, 1, 0])
    batch = SimpleNamespace(links=SimpleNamespace(relation=relation))
    found = N3()(anchors, targets, model, batch)
    expected = 0.0
    for i in range(5):
        factors = [anchors[i], targets[i]]
        if decoder_type in (ComplEx, DistMult):
            factors.append(decoder.relation[relation[i]].detach())
        for row in factors:
            if decoder_type is ComplEx:
                row = torch.complex(row[:2], row[2:])
            expected += float(row.abs().pow(3).sum())
    assert found.item() == pytest.approx(expected / 5)
    batch.links.relation = None  # one relation
    alone = [N3()(anchors[i : i + 1], targets[i : i + 1], model, batch) for i in range(5)]
    together = N3()(anchors, targets, model, batch)
    assert together.item() == pytest.approx(sum(each.item() for each in alone) / 5)


def candidates_of(ids: list[int], owner: list[int] | None = None) -> Candidates:
    return Candidates(
        rows=torch.tensor(ids).float().unsqueeze(1),
        ids=torch.tensor(ids),
        owner=None if owner is None else torch.tensor(owner),
    )


def test_a_positive_does_not_compete_with_itself_nor_with_known_links() -> None:
    # Anchors 7 and 8; 7 links to 1 and 2, 8 to 2. Candidates: the positives, a random node twice,
    # and 1 once more by chance.
    known = torch.zeros(3, 6, dtype=torch.bool)
    known[:2, [0, 1, 2, 5]] = True
    known[2, [1, 2, 3, 4]] = True
    every = torch.arange(18.0).view(3, 6)
    batch = {
        "positive": torch.tensor([0.1, 0.2, 0.3]),
        "every": every,
        "query": torch.tensor([0, 0, 1]),
        "target_ids": torch.tensor([1, 2, 2]),
        "candidates": candidates_of([1, 2, 2, 5, 5, 1]),
    }
    scores = score_links(**batch, known=known)
    assert scores.mask.int().tolist() == [
        [1, 1, 1, 0, 0, 1],
        [1, 1, 1, 0, 0, 1],
        [0, 1, 1, 1, 1, 0],
    ]
    assert torch.equal(scores.candidate, every)
    assert scores.log_q is None
    # Accidental hits left in: only the target itself is out.
    scores = score_links(**batch)
    assert scores.mask.int().tolist() == [
        [1, 0, 0, 0, 0, 1],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
    ]


def test_hard_negatives_are_for_their_own_anchor() -> None:
    candidates = candidates_of([3, 4, 5], owner=[-1, 7, 8])
    scores = score_links(
        torch.zeros(3),
        torch.zeros(3, 3),
        torch.tensor([8, 7, 8]),
        torch.tensor([0, 1, 5]),
        candidates,
    )
    assert scores.mask.int().tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 1]]


def test_links_compete_within_their_group() -> None:
    candidates = Candidates(
        rows=torch.zeros(4, 1), ids=torch.tensor([3, 4, 5, 6]), group=torch.tensor([0, 0, 1, 1])
    )
    given = (torch.zeros(2), torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([3, 9]))
    scores = score_links(*given, candidates, group=torch.tensor([0, 1]))
    assert scores.mask.int().tolist() == [[1, 0, 1, 1], [1, 1, 0, 0]]


def test_log_q_is_the_logarithm_of_the_expected_count() -> None:
    # two random draws, three targets, and a hard negative
    candidates = Candidates(
        rows=torch.zeros(6, 1),
        ids=torch.tensor([1, 2, 1, 3, 3, 9]),
        owner=torch.tensor([-1, -1, -1, -1, -1, 0]),
        in_batch=torch.tensor([False, False, True, True, True, False]),
        draw_probability=torch.tensor([0.5, 0.1, 0.5, 0.0, 0.0, 0.0]),
        link_share=torch.tensor([0.2, 0.0, 0.2, 0.4, 0.4, 0.0]),
    )
    found = candidates.log_q()
    assert found is not None
    assert found.exp().tolist() == pytest.approx([1.6, 0.2, 1.6, 1.2, 1.2, 1.0])


def test_joined_candidates_keep_the_fields_that_there_are() -> None:
    joined = Candidates.joined([candidates_of([3, 4], [-1, 7]), candidates_of([5], [8])])
    assert joined.ids.tolist() == [3, 4, 5]
    assert joined.rows.shape == (3, 1)
    assert joined.columns.keys() == {"rows", "ids", "owner"}
    assert joined.columns["owner"].tolist() == [-1, 7, 8]
    assert joined.group is None
