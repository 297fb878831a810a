"""Metrics of links, sampled and among all nodes, against brute force; ranks by group."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from raygnn.data.links.supervision import SupervisionEdges
from raygnn.loops.tasks.link_prediction.evaluation import ranks_by_group
from raygnn.metrics import (
    Accuracy,
    ComparedMetric,
    FullRanking,
    Hits,
    LinkAUC,
    LinkAveragePrecision,
    Links,
    MeanReciprocalRank,
)
from raygnn.metrics.sampled_ranking import exact_means, exact_state, sampled_ranks
from raygnn.outputs.report_advice import say_warmth
from raygnn.outputs.report_errors import find_errors
from raygnn.recommender.known_links import LinkHistory
from tests.errors import raises
from tests.unit.metrics.ranks import of_ranks_together


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


WIDTH = 12


def random_scores(num_rows: int = 40, levels: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if levels is not None:  # few values, so that many tie
        return torch.randint(levels, (num_rows, WIDTH), generator=generator).float()
    return torch.randn(num_rows, WIDTH, generator=generator)


def value_of(
    metric: ComparedMetric, *of_ranks: Tensor, num_held: int = 1 << 23
) -> dict[str, float]:
    return of_ranks_together(metric, [(scores, scores[:, 0]) for scores in of_ranks], num_held)


def results(scores: Tensor, ks: list[int]) -> dict[str, float]:
    mrr, hits = MeanReciprocalRank(WIDTH), Hits(WIDTH, ks=ks)
    return {**mrr.compute(mrr.update(scores)), **hits.compute(hits.update(scores))}


@pytest.mark.parametrize("levels", [None, 5])
def test_ranks_are_those_of_brute_force(levels: int | None) -> None:
    scores = random_scores(levels=levels)
    scores[:, 4:] = scores[:, 4:].where(scores[:, 4:] != scores[:, 3:4], -math.inf)
    expected = []
    for row in scores.tolist():
        others = [s for s in row[1:] if s != -math.inf]
        greater, equal = sum(s > row[0] for s in others), sum(s == row[0] for s in others)
        expected.append(1 + greater + equal / 2)
    assert sampled_ranks(scores).tolist() == expected
    got = results(scores, [1, 3, 12])
    assert got["mrr"] == pytest.approx(sum(1 / r for r in expected) / 40, rel=1e-15)
    for k in (1, 3, 12):
        assert got[f"hits@{k}"] == sum(r <= k for r in expected) / 40


@pytest.mark.parametrize("score", [0.0, math.inf, -math.inf])
def test_a_constant_score_is_no_better_than_chance(score: float) -> None:
    scores = torch.full((3, WIDTH), score)
    expected = (WIDTH + 1) / 2 if score > -math.inf else 1
    assert sampled_ranks(scores).tolist() == [expected] * 3


@settings(max_examples=50)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(0, 30), st.randoms())
def test_means_do_not_depend_on_the_cut(twice_ranks: list[int], cut: int, random: object) -> None:
    values = 2 / torch.tensor(twice_ranks, dtype=torch.float64).clamp(min=2).unsqueeze(1)
    whole = exact_means(exact_state(values))
    parts = exact_state(values[cut:].flip(0)) + exact_state(values[:cut])
    assert exact_means(parts) == whole
    assert whole[0] == pytest.approx(math.fsum(values.flatten().tolist()) / len(values), rel=1e-15)


def test_nothing_ranked_is_not_a_number() -> None:
    got = results(random_scores(0), [1, 3])
    assert all(math.isnan(value) for value in got.values())
    for metric in (LinkAUC(WIDTH, "link_prediction"), LinkAveragePrecision(1, "link_prediction")):
        assert math.isnan(next(iter(value_of(metric, random_scores(0)).values())))
        assert math.isnan(next(iter(value_of(metric, random_scores()[:, :1]).values())))


@pytest.mark.parametrize("levels", [None, 5])
def test_auc_and_ap_are_scikit_learns(levels: int | None) -> None:
    scores = random_scores(levels=levels)
    scores[::2, 5:] = -math.inf
    kept = torch.cat([scores[:, 0], scores[:, 1:][scores[:, 1:] > -math.inf]]).numpy()
    labels = [1] * 40 + [0] * (len(kept) - 40)
    auc = value_of(LinkAUC(WIDTH, "link_prediction"), scores)
    ap = value_of(LinkAveragePrecision(WIDTH, "link_prediction"), scores)
    assert auc == {"auc": pytest.approx(roc_auc_score(labels, kept), rel=1e-12)}
    assert ap == {"ap": pytest.approx(average_precision_score(labels, kept), rel=1e-12)}


@pytest.mark.parametrize("kind", [LinkAUC, LinkAveragePrecision])
def test_ranks_that_count_their_own_negatives_say_what_one_does(kind: type[ComparedMetric]) -> None:
    metric, scores = kind(WIDTH, "link_prediction"), random_scores(levels=5)
    parts = scores[30:], scores[:0], scores[:30]
    assert value_of(metric, *parts) == value_of(metric, scores)
    # also where scores are written to files of blocks
    assert value_of(metric, *parts, num_held=50) == value_of(metric, scores)
    scores[3, 4] = math.nan
    with raises("metric-nan", 1, 480, "scores"):
        value_of(metric, *parts)


def test_nan_is_an_error() -> None:
    scores = random_scores()
    scores[3, 4] = math.nan
    for metric in (MeanReciprocalRank(WIDTH), Hits(WIDTH)):
        with raises("metric-nan", 1, 480, "scores"):
            metric.compute(metric.update(scores))


def test_ks_have_to_be_among_the_candidates() -> None:
    assert Hits(513).ks == (1, 5, 10, 50, 100, 500)
    assert Hits(100).ks == (1, 5, 10, 50, 100)
    assert Hits(100, ks=[3, 100]).ks == (3, 100)
    with raises("metric-ks-range", "3, 101", 101):
        Hits(100, ks=[3, 101])


def test_they_are_for_links_only() -> None:
    with raises("metric-problem", "mrr", "multi_class"):
        MeanReciprocalRank(3, "multi_class")
    with raises("metric-problem", "accuracy", "link_prediction"):
        Accuracy(3, "link_prediction")


def _links(pairs: list[tuple[int, int]], target_type: str = "item") -> SupervisionEdges:
    pairs = sorted(pairs)
    anchors, counts = np.unique([a for a, _ in pairs], return_counts=True)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SupervisionEdges(
        "user", target_type, None, anchors, indptr, np.array([t for _, t in pairs])
    )


#: Targets 0 to 3 have 0, 1, 3 and 8 training links; anchor 9 has none.
TRAIN = [(0, 1), *((a, 2) for a in range(3)), *((a, 3) for a in range(8))]
JUDGED = [(0, 0), (1, 1), (2, 2), (3, 3), (9, 0), (9, 3)]


def _described(num_candidates: int = 12, same_type: bool = False):
    """Of links at random ranks, in two batches out of order; and the ranks."""
    target_type = "user" if same_type else "item"
    train, judged = _links(TRAIN, target_type), _links(JUDGED, target_type)
    ranks = np.array([1, 2, 3, 11, 12, 5])
    scores = torch.zeros(len(JUDGED), num_candidates)
    scores[:, 0] = 0.5
    for row, rank in enumerate(ranks.tolist()):
        scores[row, 1:rank] = 1.0
    found = ranks_by_group(num_candidates, train, judged)
    for diagnostic in found:
        first, second = torch.tensor([4, 1]), torch.tensor([0, 5, 3, 2])
        states = [diagnostic.update(scores[rows], rows) for rows in (first, second)]
        diagnostic.compute(states[0] + states[1])
    return {diagnostic.name: diagnostic.describe() for diagnostic in found}, ranks


def test_ranks_of_links_by_degree_and_warmth_are_those_of_a_loop():
    found, ranks = _described()
    by_degree = {"0": [0, 4], "1": [1], "2 to 5": [2], "6 to 20": [3, 5]}
    by_warmth = {"both warm": [1, 2, 3], "cold target": [0], "cold anchor": [5], "both cold": [4]}
    for name, groups in (("ranks_by_degree", by_degree), ("ranks_by_warmth", by_warmth)):
        assert found[name]["groups"] == list(groups)
        assert found[name]["links"] == [len(rows) for rows in groups.values()]
        expected = [np.mean(1 / ranks[rows]) for rows in groups.values()]
        np.testing.assert_allclose(found[name]["mrr"], expected)
        hits = [np.mean(ranks[rows] <= 10) for rows in groups.values()]
        np.testing.assert_allclose(found[name]["hits@10"], hits)


def test_rows_in_time_are_cold_until_their_first_known_link():
    """Training rows do not count, only links until the time of a row."""
    judged = replace(_links([(0, 1), (0, 2), (1, 1), (1, 3)]), times=np.array([5, 5, 5, 5]))
    ends = np.array([0, 2, 0]), np.array([1, 1, 2])
    history = LinkHistory((3, 4), *ends, times=np.array([4, 5, 6]))
    by_degree, by_warmth = ranks_by_group(9, _links(TRAIN), judged, history)
    for diagnostic in (by_degree, by_warmth):
        diagnostic.compute(diagnostic.update(torch.zeros(4, 9), torch.arange(4)))
    # Item 1 is known to have two links at time 5, user 0 one, user 1 and items 2 and 3 none.
    assert by_degree.describe()["groups"] == ["0", "2 to 5"]
    assert by_degree.describe()["links"] == [2, 2]
    assert by_warmth.describe()["groups"] == [
        "both warm",
        "cold target",
        "cold anchor",
        "both cold",
    ]
    assert by_warmth.describe()["links"] == [1, 1, 1, 1]


def test_between_nodes_of_one_type_links_count_for_both_ends():
    found, _ = _described(same_type=True)
    assert found["ranks_by_warmth"]["groups"] == ["both warm", "cold anchor"]


def test_hits_that_all_links_are_do_not_count():
    found, _ = _described(num_candidates=12)
    assert "hits@10" in found["ranks_by_degree"]
    diagnostics = ranks_by_group(10, _links(TRAIN), _links(JUDGED))
    for diagnostic in diagnostics:
        diagnostic.compute(diagnostic.update(torch.zeros(6, 10), torch.arange(6)))
        assert "hits@10" not in diagnostic.describe()


def test_the_report_has_a_table_of_each():
    found, _ = _described()
    tables = find_errors({name: {"test": value} for name, value in found.items()}).tables
    heads, rows = tables["Ranks by known links of the target, test"]
    assert heads == ("known links of the target", "links", "mrr", "hits@10")
    assert [row[:2] for row in rows] == [("0", 2), ("1", 1), ("2 to 5", 1), ("6 to 20", 2)]
    assert "Ranks by known links of both ends, test" in tables


def test_the_log_has_cold_links_if_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    both = {"groups": ["both warm", "cold target"], "links": [90, 10], "mrr": [0.5, 0.25]}
    say_warmth({"ranks_by_warmth": {"test": both}})
    assert "test/mrr by known links: both warm 0.5000 (90)  cold target 0.2500 (10)" in (
        capsys.readouterr().out
    )
    say_warmth({"ranks_by_warmth": {"test": {"groups": ["both warm"], "links": [9], "mrr": [1.0]}}})
    assert not capsys.readouterr().out
