"""The candidates of highest score, exactly, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raygnn.errors import DataError

# Scores that are held at a time, 32 MB of float64, and candidates.
_MAX_SCORES = 1 << 22
_MAX_CANDIDATES = 1 << 16

#: (anchors, candidates) -> [num_anchors, num_candidates], as `Decoder.score_all`.
Scores = Callable[[Tensor, Tensor], Tensor]
#: (first, last + 1) candidate -> bool [num_anchors, last - first], those that are left out.
LeftOut = Callable[[int, int], Tensor]


def top_k(
    anchors: Tensor,
    candidates: Callable[[int, int], Tensor],
    num_candidates: int,
    k: int,
    scores: Scores,
    left_out: LeftOut | None = None,
) -> tuple[Tensor, Tensor]:
    """Finds the k candidates of highest score for each anchor; of equal scores the first ones.

    Scores are computed in float64 and compared in float32: so they do not depend on how the matrix
    product is cut, and equal embeddings have equal scores.

    Args:
        anchors: [num_anchors, channels].
        candidates: gives [last - first, channels] of a range, on the device of the anchors.
        k: at most `num_candidates`.
        scores: of float64 rows.
    Returns:
        float32 and int64 [num_anchors, k], scores and positions of candidates, best first; -inf
        where fewer are not left out.
    Raises:
        DataError: a score is not a number.
    """
    rows = anchors.double()
    best = rows.new_empty(len(rows), 0, dtype=torch.float32)
    places = rows.new_empty(len(rows), 0, dtype=torch.int64)
    size = min(max(_MAX_SCORES // max(len(rows), 1), 1), _MAX_CANDIDATES)
    for first in range(0, num_candidates, size):
        last = min(first + size, num_candidates)
        found = scores(rows, candidates(first, last).double()).float()
        if found.isnan().any():
            raise DataError(
                "the model gives scores that are not numbers. Check the features of the graph for "
                "extreme values, and the metrics of the model.",
                id="infer-not-finite",
            )
        if left_out is not None:
            found = found.masked_fill(left_out(first, last), -torch.inf)
        here = torch.arange(first, last, device=rows.device).expand(len(rows), -1)
        best, places = torch.cat([best, found], dim=1), torch.cat([places, here], dim=1)
        if best.shape[1] > k:
            kept = _kept(best, k)
            best, places = best.gather(1, kept), places.gather(1, kept)
    order = best.argsort(dim=1, descending=True, stable=True)
    return best.gather(1, order), places.gather(1, order)


def _kept(scores: Tensor, k: int) -> Tensor:
    """Columns of the k highest scores of each row, ascending; of equal scores the first columns."""
    least = scores.topk(k, dim=1).values[:, -1:]
    above, equal = scores > least, scores == least
    room = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1) <= room))
    return chosen.nonzero()[:, 1].view(len(scores), k)
