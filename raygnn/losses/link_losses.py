"""Losses on links: positives against their candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from raygnn.config.section import NonNegativeNumber, PositiveNumber
from raygnn.losses.link_scores import (
    CandidateScope,
    LinkLoss,
    LinkScores,
    mean_over_candidates,
    precise_scores,
)
from raygnn.losses.seed_losses import in_full_precision

if TYPE_CHECKING:
    from raygnn.models.predictors import LinkPredictor
    from raygnn.sampling.batch import LinkBatch

# 0.5 MB of float32: two of them fit a cache of 2 MB.
_ELEMENTS_AT_A_TIME = 1 << 17
# exp(-80) is 2e-35: nothing beside the largest of a sum, 1, and still a normal float32.
_LEAST_EXPONENT = -80.0


class LinkBinaryCrossEntropy(LinkLoss):
    """Binary cross-entropy on scores as logits, with equal weight of positives and candidates.

    Half the positive's loss plus half its candidates' mean loss. With one candidate per positive,
    this is the mean over all pairs, as in scripts with PyG's `negative_sampling`.
    """

    by_query = True

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        scores = scores.without_in_batch()
        positive, candidate = precise_scores(scores)
        of_candidates = mean_over_candidates(functional.softplus(candidate), scores.mask)
        losses = (functional.softplus(-positive) + scores.of_positives(of_candidates)) / 2
        return losses.sum(), float(len(positive))


class Margin(LinkLoss):
    """max(0, margin - positive + candidate), averaged over each positive's candidates.

    Args:
        margin: required difference between positive and candidate.
    """

    def __init__(self, margin: NonNegativeNumber = 0.5) -> None:
        super().__init__()
        self.margin = float(margin)

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        scores = scores.without_in_batch()
        positive, candidate = precise_scores(scores)
        lacking = (self.margin - positive.unsqueeze(1) + candidate).relu()
        return mean_over_candidates(lacking, scores.mask).sum(), float(len(positive))


class BPR(LinkLoss):
    """Bayesian personalized ranking, arXiv:1205.2618: -log sigmoid(positive - candidate).

    Averaged over each positive's candidates.
    """

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        scores = scores.without_in_batch()
        positive, candidate = precise_scores(scores)
        losses = functional.softplus(candidate - positive.unsqueeze(1))
        return mean_over_candidates(losses, scores.mask).sum(), float(len(positive))


class DirectAU(nn.Module):
    """Alignment and uniformity of embeddings of unit length, without negatives.

    Alignment is the squared distance of a link's ends. Uniformity is the logarithm of the mean of
    exp(-2 distance squared) over all pairs of anchors and of targets of a micro-batch, averaged
    over both.

    Source: arXiv:2206.12811, equations 7 to 9.

    Args:
        uniformity: weight of the uniformity.
    """

    def __init__(self, uniformity: NonNegativeNumber = 1.0) -> None:
        super().__init__()
        self.uniformity = float(uniformity)

    def forward(self, anchor_embeddings: Tensor, target_embeddings: Tensor) -> Tensor:
        """Mean over links, a scalar, from anchor and target embeddings, [num_links, channels]."""
        anchors, targets = (
            functional.normalize(in_full_precision(rows))
            for rows in (anchor_embeddings, target_embeddings)
        )
        alignment = (anchors - targets).square().sum(dim=1).mean()
        return alignment + self.uniformity * (_uniformity(anchors) + _uniformity(targets)) / 2


def _uniformity(rows: Tensor) -> Tensor:
    if len(rows) < 2:
        return rows.sum() * 0
    cosines = (rows @ rows.T)[*torch.triu_indices(len(rows), len(rows), 1, device=rows.device)]
    return torch.logsumexp(4 * cosines - 4, dim=0) - math.log(len(cosines))


class _SampledSoftmax(LinkLoss):
    """Cross-entropy of each positive in the softmax over itself and its candidates.

    With log_q, exp(score) of a candidate is divided by its expected number among the candidates, so
    their sum is an unbiased estimate of the sum over all nodes. The positive is always present and
    not corrected ("Correcting the LogQ Correction", arXiv:2507.09331).
    """

    reads_log_q = True
    by_query = True

    def __init__(self, temperature: PositiveNumber = 1.0) -> None:
        super().__init__()
        self.temperature = float(temperature)

    def forward(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        if not self.in_batch:
            scores = scores.without_in_batch()
        if scores.query is not None:
            return self._by_query(scores)
        losses: Tensor = _SoftmaxCrossEntropy.apply(
            in_full_precision(scores.positive),
            in_full_precision(scores.candidate),
            scores.mask,
            scores.log_q,
            self.temperature,
        )
        return losses.sum(), float(len(losses))

    def _by_query(self, scores: LinkScores) -> tuple[Tensor, Tensor | float]:
        positive = in_full_precision(scores.positive) / self.temperature
        candidate = in_full_precision(scores.candidate)
        if self.temperature != 1:
            candidate = candidate / self.temperature
        total: Tensor = _MaskedLogSumExp.apply(candidate, scores.mask)
        others = scores.of_positives(total)
        return (torch.logaddexp(others, positive) - positive).sum(), float(len(positive))


class _MaskedLogSumExp(torch.autograd.Function):
    """logsumexp of unmasked entries, [num_rows], in half of torch's time and memory.

    A row with all entries masked gives a number small enough to add nothing.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, mask: Tensor) -> Tensor:
        masked = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        share = masked.softmax(dim=1)
        ctx.save_for_backward(share)
        return masked.amax(dim=1) - share.amax(dim=1).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (share,) = ctx.saved_tensors
        return share * grad.unsqueeze(1), None


class Retrieval(_SampledSoftmax):
    """Softmax of each positive against everything in the batch.

    Candidates are the positives of other anchors, random negatives and hard negatives.

    Args:
        temperature: divides the scores.
        candidates: `rank`: of the micro-batch; `global`: of all micro-batches of the optimizer step
            on all ranks, so that loss and gradient do not depend on how the global batch is
            divided.
    """

    in_batch = True

    def __init__(
        self, temperature: PositiveNumber = 1.0, candidates: CandidateScope = "rank"
    ) -> None:
        super().__init__(temperature)
        self.candidates = candidates


class SoftmaxOwnNegatives(_SampledSoftmax):
    """Softmax of each positive against random negatives and its own anchor's hard negatives.

    Args:
        temperature: divides the scores.
    """


class _SoftmaxCrossEntropy(torch.autograd.Function):
    """-log of each positive's share in the softmax over itself and its candidates, [num_positives].

    On a CPU, a few rows are computed at a time so that intermediate results stay in a cache; the
    backward pass recomputes them. Inputs are positive, candidate, mask and log_q of `LinkScores`,
    and the temperature.
    """

    @staticmethod
    def forward(
        ctx: Any,
        positive: Tensor,
        candidate: Tensor,
        mask: Tensor,
        log_q: Tensor | None,
        temperature: float,
    ) -> Tensor:
        pos = positive / temperature
        total = torch.empty_like(pos)
        for rows in _chunks(candidate):
            logits = _logits(candidate[rows], log_q, temperature)
            logits = torch.where(mask[rows], -torch.inf, logits)
            largest = pos[rows].maximum(logits.amax(dim=1)) if logits.shape[1] else pos[rows]
            sums = _exp(logits.sub_(largest.unsqueeze(1))).sum(dim=1) + (pos[rows] - largest).exp()
            total[rows] = sums.log_() + largest
        ctx.temperature = temperature
        ctx.save_for_backward(pos, candidate, mask, log_q, total)
        return total - pos

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pos, candidate, mask, log_q, total = ctx.saved_tensors
        grad = grad / ctx.temperature
        grad_candidate = torch.empty_like(candidate)
        for rows in _chunks(candidate):
            logits = _logits(candidate[rows], log_q, ctx.temperature)
            shares = _exp(logits.sub_(total[rows].unsqueeze(1))).mul_(grad[rows].unsqueeze(1))
            grad_candidate[rows] = torch.where(mask[rows], 0.0, shares)
        return ((pos - total).exp() - 1) * grad, grad_candidate, None, None, None


def _chunks(candidate: Tensor) -> Iterator[slice]:
    num_rows, num_candidates = candidate.shape
    step = num_rows
    if candidate.device.type == "cpu":
        step = _ELEMENTS_AT_A_TIME // max(1, num_candidates)
    step = max(1, step)
    return (slice(first, first + step) for first in range(0, num_rows, step))


def _logits(candidate: Tensor, log_q: Tensor | None, temperature: float) -> Tensor:
    logits = candidate / temperature
    return logits if log_q is None else logits.sub_(log_q.to(logits.dtype))


def _exp(logits: Tensor) -> Tensor:
    """exp in place. torch's is ten times slower if results underflow float32."""
    return logits.clamp_(min=_LEAST_EXPONENT).exp_()


class N3(nn.Module):
    """Nuclear 3-norm, arXiv:1806.07297, section 4: sum of |x|^3 over anchor, relation and target.

    |x| is the modulus, also of complex numbers if the decoder has them. It is averaged over links,
    so a node counts as often as it has links.
    """

    def forward(
        self,
        anchor_embeddings: Tensor,
        target_embeddings: Tensor,
        model: LinkPredictor,
        batch: LinkBatch,
    ) -> Tensor:
        """A scalar, from embeddings [num_links, channels]. `model` has the rows of relations."""
        relation = 0 if batch.links.relation is None else batch.links.relation
        of_relation = model.decoder.relation_rows(relation)
        num_links = len(anchor_embeddings)
        ends = model.decoder.squared_moduli(torch.cat([anchor_embeddings, target_embeddings]))
        total = in_full_precision(ends).pow(1.5).sum()
        if of_relation is not None:
            moduli = in_full_precision(model.decoder.squared_moduli(of_relation)).pow(1.5)
            total = total + moduli.sum() * (1 if moduli.dim() == 2 else num_links)
        return total / num_links
