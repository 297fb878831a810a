"""Ranking of every node of a type for each query, without other known links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raygnn.device_memory import copied, free_bytes
from raygnn.errors import DataError
from raygnn.metrics.sampled_ranking import check_ks, check_scores, exact_means, exact_state

#: Scores of queries [num_queries, C] with candidates [num_candidates, C].
ScoreAll = Callable[[Tensor, Tensor], Tensor]

# On a CPU, scores in memory, and scores compared with positives at a time: 1 MB of a cache (16 M at
# a time took thrice as long).
_NUM_SCORES, _NUM_COMPARED = 1 << 24, 1 << 18
# On a GPU, both take at most a quarter of the free memory, at 16 bytes a score.
_BYTES_PER_SCORE, _MOST_SCORES = 4 * 16, 1 << 30


class Links(NamedTuple):
    """Links from queries to candidates, as a CSR matrix.

    Attributes:
        indptr: int64 [num_queries + 1].
        targets: int64 [num_links], ids of candidates, in any order.
    """

    indptr: Tensor
    targets: Tensor

    def keys(self, num_candidates: int) -> Tensor:
        """Distinct links as query * num_candidates + target, int64, ascending."""
        queries = torch.arange(len(self.indptr) - 1, device=self.indptr.device)
        query_of = queries.repeat_interleave(self.indptr.diff())
        return (query_of * num_candidates + self.targets).unique()


class FullRanking:
    """Ranks all candidates of each query, exactly, in bounded memory.

    By positive link, among candidates without other known links of its query:

        full_mrr: mean of 1 / rank.
        full_hits@k: share with a rank of at most k. Ties count half: 1 + #greater + #equal / 2.

    By query with positives, among candidates without its other known links:

        full_recall@k: share of its positives among the first k.
        full_precision@k: share of the first k that are positives.
        full_map@k: sum over the positives among the first k of the precision up to each, divided by
            k or the number of positives, whichever is smaller.
        full_ndcg@k: sum of 1 / log2(1 + position) of its positives among the first k, divided by
            the largest possible sum.

    Ties: the mean over all orders.

    States are sums without rounding, so 1, 2 or 3 workers get the same bits from the same batches.

    Args:
        num_candidates: nodes of the target type.
        ks: default: those of 1, 5, 10, 50, 100, 500 that are at most `num_candidates`.
        chunk_size: scores in memory at a time, at least one query's. Default: by device.
    Raises:
        ConfigError: a k is out of range.
    """

    def __init__(
        self, num_candidates: int, ks: Sequence[int] | None = None, chunk_size: int | None = None
    ) -> None:
        self.num_candidates = num_candidates
        self.ks = check_ks(ks, num_candidates)
        self._chunk_size = chunk_size

    @torch.no_grad()
    def update(
        self,
        query_rows: Tensor,
        candidate_rows: Tensor,
        positives: Links,
        known: Links,
        score_all: ScoreAll,
    ) -> Tensor:
        """Ranks the positives of one batch of queries. Returns a float64 state on the host, to be
        added to others. Waits for a device once.

        Args:
            query_rows: [num_queries, C], embeddings.
            candidate_rows: [num_candidates, C], embeddings of all nodes of the target type.
            positives: links of the evaluated split, on the host.
            known: other links, excluded as candidates; need not contain the positives. To
                exclude the query itself, add it as its own known link.
            score_all: as `Decoder.score_all`; a score may not depend on other rows.
        Raises:
            DataError: the number of candidates is wrong, or an id is out of range.
            TrainingError: a score is NaN.
        """
        self._check(query_rows, candidate_rows, positives, known)
        keys = positives.keys(self.num_candidates)
        if not len(keys):
            return torch.zeros(sum(self._state_sizes), dtype=torch.float64)
        filtered = known.keys(self.num_candidates)
        filtered = filtered[~torch.isin(filtered, keys, assume_unique=True)]
        counts = self._count(query_rows, candidate_rows, keys, filtered, score_all)
        by_query = self._by_query(*counts)
        return torch.cat([exact_state(self._by_link(*counts[1:])), exact_state(by_query)])

    def compute(self, state: Tensor) -> dict[str, float]:
        """The metrics by name from the sum of all states; NaN without links."""
        num_ks = len(self.ks)
        by_link, by_query = state.split(self._state_sizes)
        mrr, *hits = exact_means(by_link)
        of_queries = exact_means(by_query)
        results = {"full_mrr": mrr}
        named = {
            name: of_queries[i * num_ks : (i + 1) * num_ks]
            for i, name in enumerate(("recall", "ndcg", "precision", "map"))
        }
        for name, values in {"hits": hits, **named}.items():
            for k, value in zip(self.ks, values, strict=True):
                results[f"full_{name}@{k}"] = value
        return results

    @property
    def _state_sizes(self) -> list[int]:
        return [1 + 2 * (1 + len(self.ks)), 1 + 2 * 4 * len(self.ks)]

    def _check(
        self, query_rows: Tensor, candidate_rows: Tensor, positives: Links, known: Links
    ) -> None:
        if candidate_rows.shape[0] != self.num_candidates:
            raise DataError(
                f"full ranking: {candidate_rows.shape[0]} candidates were given, expected "
                f"{self.num_candidates}, one per target node. [metric-ranking-inputs]"
            )
        for name, links in (("positives", positives), ("known", known)):
            if len(links.indptr) != len(query_rows) + 1:
                raise DataError(
                    f"full ranking: {name}.indptr has {len(links.indptr)} entries, expected "
                    f"{len(query_rows) + 1} for {len(query_rows)} queries. [metric-ranking-inputs]"
                )
            is_outside = (links.targets < 0) | (links.targets >= self.num_candidates)
            if is_outside.any():
                raise DataError(
                    f"full ranking: {name}.targets holds {links.targets[is_outside][:3].tolist()}, "
                    f"not below {self.num_candidates}. [metric-ranking-inputs]"
                )

    def _count(
        self,
        query_rows: Tensor,
        candidate_rows: Tensor,
        keys: Tensor,
        filtered: Tensor,
        score_all: ScoreAll,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Compares each positive link with the unfiltered candidates of its query.

        Returns:
            By link: query, number of candidates with a higher and with the same score (including
            itself), and how many of these are positives of the same query.
        """
        num, device = self.num_candidates, query_rows.device
        num_scores, num_compared = self._sizes(device)
        width = min(num, max(1, num_scores // len(query_rows)))
        filtered = filtered[(filtered % num).argsort()]
        starts = torch.searchsorted(filtered % num, torch.arange(0, num + width, width)).tolist()
        with_links = (keys % num // width * width).unique().tolist()
        ends = torch.cat([keys // num, keys % num, filtered // num, filtered % num])
        sizes = [len(keys), len(keys), len(filtered), len(filtered)]
        query, target, known_query, known_target = copied(ends, device).split(sizes)
        own = torch.full((len(keys),), torch.nan, device=device, dtype=torch.float64)
        counts = own.new_zeros((2, len(keys)))  # exact, as all whole numbers up to 2^53
        num_nan = own.new_zeros(1)

        # The score of a link comes from the same product as the scores that it is compared with:
        # computed in another shape its last bit may differ. More than one chunk is scored twice.
        for first in with_links:
            scores = score_all(query_rows, candidate_rows[first : first + width])
            column = target - first
            of_links = scores[query, column.clamp(0, scores.shape[1] - 1)].double()
            own = torch.where((column >= 0) & (column < width), of_links, own)
        for chunk, first in enumerate(range(0, num, width)):
            if width < num:
                scores = score_all(query_rows, candidate_rows[first : first + width])
            num_nan += scores.isnan().sum()
            known = slice(starts[chunk], starts[chunk + 1])
            scores[known_query[known], known_target[known] - first] = -torch.inf
            step, parts = max(1, num_compared // scores.shape[1]), []
            blocks = zip(query.split(step), own.to(scores.dtype).split(step), strict=True)
            for rows, own_scores in blocks:
                others, mine = scores[rows], own_scores.unsqueeze(1)
                is_equal = (others == mine) & (others > -torch.inf)
                parts.append(torch.stack([(others > mine).sum(dim=1), is_equal.sum(dim=1)]))
            counts += torch.cat(parts, dim=1)
        read = torch.cat([num_nan, own, counts.view(-1)]).cpu()
        check_scores(int(read[0]), len(query_rows) * num)
        own, (greater, equal) = read[1 : 1 + len(keys)], read[1 + len(keys) :].long().view(2, -1)
        query = keys // num
        greater_positives, equal_positives = _among_positives(query, own)
        # Positives with a score of -inf, and candidates of equal score, were not counted.
        equal = torch.maximum(equal, equal_positives + 1)
        return query, greater, equal, greater_positives, equal_positives

    def _sizes(self, device: torch.device) -> tuple[int, int]:
        """Scores in memory at a time, and scores that are compared at a time."""
        most = self._chunk_size
        if device.type == "cuda":
            free = min(free_bytes(device) // _BYTES_PER_SCORE, _MOST_SCORES)
            return most or free, most or free
        return most or _NUM_SCORES, min(most or _NUM_COMPARED, _NUM_COMPARED)

    def _by_link(
        self, greater: Tensor, equal: Tensor, greater_positives: Tensor, equal_positives: Tensor
    ) -> Tensor:
        """Reciprocal rank and hits without other positives, [num_links, 1 + number of ks]."""
        num_ties = equal - 1 - equal_positives
        rank = 1 + (greater - greater_positives).double() + 0.5 * num_ties.double()
        hits = rank.unsqueeze(1) <= rank.new_tensor(self.ks)
        return torch.cat([1 / rank.unsqueeze(1), hits.double()], dim=1)

    def _by_query(
        self,
        query: Tensor,
        greater: Tensor,
        equal: Tensor,
        greater_positives: Tensor,
        equal_positives: Tensor,
    ) -> Tensor:
        num_positives = query.unique_consecutive(return_counts=True)[1]

        def total(of_links: Tensor) -> Tensor:
            return torch.segment_reduce(of_links, "sum", lengths=num_positives)

        columns = []
        for discounted in (False, True):
            place = torch.arange(1, max(self.ks) + 1, dtype=torch.float64, device=query.device)
            gain = 1 / (place + 1).log2() if discounted else torch.ones_like(place)
            gains_before = torch.cat([gain.new_zeros(1), gain.cumsum(0)])
            for k in self.ks:
                # The places of a link and its ties are greater + 1 ... greater + equal.
                upper = gains_before[(greater + equal).clamp(max=k)]
                share = (upper - gains_before[greater.clamp(max=k)]) / equal
                best = num_positives.clamp(max=k) if discounted else num_positives
                ideal = gains_before[best] if discounted else best
                columns.append(total(share) / ideal)
        columns += [columns[i] * num_positives / k for i, k in enumerate(self.ks)]
        # At the place greater + j of a link among its ties, 1 + greater_positives + (j - 1) * rate
        # positives are expected up to it: rate + first / (greater + j) is the precision.
        rate = equal_positives.double() / (equal - 1).clamp(min=1)
        first = greater_positives + 1 - rate * (greater + 1)
        harmonic = torch.cat([gain.new_zeros(1), (1 / place).cumsum(0)])
        for k in self.ks:
            start, stop = greater.clamp(max=k), (greater + equal).clamp(max=k)
            precision = rate * (stop - start) + first * (harmonic[stop] - harmonic[start])
            columns.append(total(precision / equal) / num_positives.clamp(max=k))
        # A perfect sum may exceed the ideal by rounding.
        return torch.stack(columns, dim=1).clamp(max=1)


def _among_positives(query: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Counts, per positive, its query's other positives with a higher and with an equal score.

    Args:
        query: int64 [num_links], ascending.
        own: [num_links], scores.
    """
    # By query, then by descending score: entries before a link in its query have higher scores.
    order = own.argsort(descending=True, stable=True)
    order = order[query[order].argsort(stable=True)]
    sorted_query, score = query[order], own[order]
    is_first = torch.ones_like(sorted_query, dtype=torch.bool)
    is_first[1:] = sorted_query[1:] != sorted_query[:-1]
    starts_level = is_first.clone()
    starts_level[1:] |= score[1:] != score[:-1]
    position = torch.arange(len(order), device=order.device)
    query_start = position[is_first][is_first.long().cumsum(0) - 1]
    level = starts_level.long().cumsum(0) - 1
    level_start = position[starts_level][level]
    num_in_level = torch.bincount(level, minlength=1)[level] if len(level) else level
    greater, equal = torch.empty_like(query), torch.empty_like(query)
    greater[order] = level_start - query_start
    equal[order] = num_in_level - 1
    return greater, equal
