"""Ranks among sampled candidates, AUC and AP are those of brute force and scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from raygnn.metrics import (
    Accuracy,
    ComparedMetric,
    Hits,
    LinkAUC,
    LinkAveragePrecision,
    MeanReciprocalRank,
)
from raygnn.metrics.sampled_ranking import exact_means, exact_state, sampled_ranks
from tests.errors import raises
from tests.unit.metrics.ranks import of_ranks_together

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
