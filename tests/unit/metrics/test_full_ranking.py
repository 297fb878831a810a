"""Filtered full ranking is brute force over all orders of ties."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from raygnn.metrics import FullRanking, Links
from tests.errors import raises


def links_of(lists: list[list[int]]) -> Links:
    indptr = torch.tensor([0, *[len(targets) for targets in lists]]).cumsum(0)
    return Links(indptr, torch.tensor([t for targets in lists for t in targets], dtype=torch.long))


def inner(queries: Tensor, candidates: Tensor) -> Tensor:
    return queries @ candidates.T


def rank(
    scores: Tensor, positives: list[list[int]], known: list[list[int]], chunk_size: int = 1 << 24
) -> dict[str, float]:
    """Ranks by given scores: queries are their rows, candidates the unit vectors."""
    ranking = FullRanking(scores.shape[1], [1, 2, 4], chunk_size)
    unit = torch.eye(scores.shape[1])
    state = ranking.update(scores, unit, links_of(positives), links_of(known), inner)
    return ranking.compute(state)


def brute_force(
    scores: Tensor, positives: list[list[int]], known: list[list[int]], ks: list[int]
) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row, of_query, known_of_query in zip(scores.tolist(), positives, known, strict=True):
        for target in of_query:
            left = set(range(len(row))) - {*known_of_query, *of_query}
            greater = sum(row[j] > row[target] for j in left)
            position = 1 + greater + sum(row[j] == row[target] for j in left) / 2
            values.setdefault("full_mrr", []).append(1 / position)
            for k in ks:
                values.setdefault(f"full_hits@{k}", []).append(float(position <= k))
        if not of_query:
            continue
        left = (set(range(len(row))) - {*known_of_query}) | {*of_query}
        for k in ks:
            recall, dcg, average = [], [], []
            # Permuting the candidates and sorting them stably gives each order of ties alike often.
            for order in itertools.permutations(left):
                top = sorted(order, key=lambda j: -row[j])[:k]
                recall.append(sum(j in of_query for j in top) / len(of_query))
                dcg.append(sum(1 / math.log2(i + 2) for i, j in enumerate(top) if j in of_query))
                is_hit = [j in of_query for j in top]
                parts = [sum(is_hit[: i + 1]) / (i + 1) for i, hit in enumerate(is_hit) if hit]
                average.append(sum(parts) / min(k, len(of_query)))
            ideal = sum(1 / math.log2(i + 2) for i in range(min(k, len(of_query))))
            precision = statistics.fmean(recall) * len(of_query) / k
            values.setdefault(f"full_precision@{k}", []).append(precision)
            values.setdefault(f"full_map@{k}", []).append(statistics.fmean(average))
            values.setdefault(f"full_recall@{k}", []).append(statistics.fmean(recall))
            values.setdefault(f"full_ndcg@{k}", []).append(statistics.fmean(dcg) / ideal)
    return {name: statistics.fmean(entries) for name, entries in values.items()}


IDS = st.lists(st.integers(0, 4), unique=True, max_size=3)


QUERIES = st.tuples(st.lists(st.integers(0, 3), min_size=5, max_size=5), IDS, IDS)


@settings(max_examples=25)
@given(st.lists(QUERIES, min_size=1, max_size=3), st.sampled_from([1, 4, 1000]))
def test_it_is_brute_force(
    queries: list[tuple[list[int], list[int], list[int]]], chunk_size: int
) -> None:
    scores = torch.tensor([q[0] for q in queries]).float()
    positives, known = [q[1] for q in queries], [q[2] for q in queries]
    got = rank(scores, positives, known, chunk_size)
    expected = brute_force(scores, positives, known, [1, 2, 4])
    for name, value in got.items():
        assert value == pytest.approx(expected.get(name, math.nan), rel=1e-12, nan_ok=True), name


def test_states_of_batches_and_chunks_add_up_to_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randint(-3, 4, (12, 8), generator=generator).float()
    candidates = torch.randint(-3, 4, (40, 8), generator=generator).float()
    positives = [[i, i + 12, i + 20] for i in range(12)]
    known = [[i + 1, i + 13] for i in range(12)]
    results = []
    for size, chunk_size in ((12, 1 << 24), (4, 100), (5, 1), (1, 30)):
        ranking = FullRanking(40, [1, 10], chunk_size)
        states = []
        for i in range(0, 12, size):
            batch = slice(i, i + size)
            links = links_of(positives[batch]), links_of(known[batch])
            states.append(ranking.update(queries[batch], candidates, *links, inner))
        results.append(ranking.compute(torch.stack(states[::-1]).sum(0)))
    assert all(result == results[0] for result in results)
    assert 0 < results[0]["full_mrr"] < 1


def test_a_perfect_ranking_scores_one_and_ties_of_positives_cost_nothing() -> None:
    scores = torch.tensor([[5.0, 5.0, 5.0, 1.0, 0.0, 0.0]])
    got = rank(scores, [[0, 1, 2]], [[]])
    assert got["full_mrr"] == got["full_ndcg@4"] == got["full_recall@4"] == got["full_hits@1"] == 1
    assert got["full_recall@1"] == pytest.approx(1 / 3)


def test_links_that_score_minus_infinity_come_last() -> None:
    scores = torch.tensor([[-math.inf, -math.inf, 1.0, 2.0]])
    ranking = FullRanking(4, [1])
    state = ranking.update(
        scores, torch.eye(4), links_of([[0, 1]]), links_of([[]]), lambda queries, _: queries.clone()
    )
    assert ranking.compute(state)["full_mrr"] == pytest.approx(1 / 3)


def test_it_refuses_what_it_cannot_rank() -> None:
    ranking, rows = FullRanking(3, [1]), torch.ones(1, 2)
    some, none = links_of([[0]]), links_of([[]])
    with raises("metric-ks-range", 4, 3):
        FullRanking(3, [4])
    assert FullRanking(7).ks == (1, 5)
    with raises("metric-ranking-inputs", 2, 3):
        ranking.update(rows, torch.ones(2, 2), some, none, inner)
    with raises("metric-ranking-inputs", "known", 3, 2, 1):
        ranking.update(rows, torch.ones(3, 2), some, links_of([[], []]), inner)
    with raises("metric-ranking-inputs", "positives", 3):
        ranking.update(rows, torch.ones(3, 2), links_of([[3]]), none, inner)
    with raises("metric-nan", 3, "scores"):
        ranking.update(rows * math.nan, torch.ones(3, 2), some, none, inner)
    state = ranking.update(rows, torch.ones(3, 2), none, some, inner)
    assert all(math.isnan(value) for value in ranking.compute(state).values())
