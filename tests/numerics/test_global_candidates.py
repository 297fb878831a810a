"""A retrieval loss whose candidates are all ranks' is that of their batches as one."""

from __future__ import annotations

import pytest
import torch

from raygnn.loops import collectives
from raygnn.loops.differentiable_gather import gather_with_gradient
from raygnn.losses import Candidates, Retrieval, known_links, score_links
from tests.rank_pool import RankPool

KNOWN = torch.tensor([[0, 3], [1, 4], [2, 5], [3, 5], [4, 0], [5, 1]])


def _loss_and_gradients(first: int, last: int) -> tuple[float, list[torch.Tensor]]:
    """Loss and parameter gradients from the links first to last, summed over all ranks."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    anchor_ids, target_ids = torch.arange(first, last), (torch.arange(first, last) + 3) % 6
    rows = features @ weight
    candidates = Candidates(rows=rows[target_ids], ids=target_ids)
    candidates = candidates.of_all_ranks(gather_with_gradient)
    links = KNOWN[first:last]
    scores = score_links(
        (rows[anchor_ids] * rows[target_ids]).sum(1),
        rows[anchor_ids] @ candidates.rows.T,
        torch.arange(last - first),
        anchor_ids,
        target_ids,
        candidates,
        known_links(2 * torch.arange(last - first + 1), links.flatten(), candidates.ids),
    )
    loss_sum, _ = Retrieval(temperature=0.5, candidates="global")(scores)
    loss_sum.backward()
    total = collectives.all_reduce_sum(loss_sum.detach().view(1))
    assert weight.grad is not None
    return float(total), [collectives.all_reduce_sum(weight.grad)]


def _share(bounds: list[int]) -> tuple[float, list[torch.Tensor]]:
    rank = collectives.rank()
    return _loss_and_gradients(bounds[rank], bounds[rank + 1])


# The last rank of three has no link: it takes part with nothing.
@pytest.mark.parametrize("bounds", [[0, 4, 6], [0, 2, 6, 6]])
def test_they_equal_one_rank_with_the_whole_batch(ranks: RankPool, bounds: list[int]) -> None:
    loss, gradients = _loss_and_gradients(0, 6)
    for got_loss, got_gradients in ranks.run(_share, len(bounds) - 1, bounds):
        assert got_loss == pytest.approx(loss, rel=1e-12)
        torch.testing.assert_close(got_gradients, gradients)
