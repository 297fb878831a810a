"""Validation chooses the settings of the recommender and the weights of the blend."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.data.links.supervision import KnownLinks, KnownPositives, SupervisionEdges
from raygnn.recommender.choice import JudgedRows, choose_settings, choose_weights
from raygnn.recommender.known_links import LinkHistory, count_later
from raygnn.recommender.regression import AnchorRows, LinkBasis, RegressionSettings

NUM_ANCHORS, NUM_TARGETS = 300, 80


def _csr(anchors: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((targets, anchors))
    counts = np.bincount(anchors, minlength=NUM_ANCHORS)
    return np.concatenate([[0], np.cumsum(counts)]), targets[order]


def _judged(history: LinkHistory, anchors: np.ndarray, targets: np.ndarray) -> JudgedRows:
    """Validation links, without those that training knows."""
    known = set(zip(history.anchors.tolist(), history.targets.tolist(), strict=True))
    pairs = sorted({*zip(anchors.tolist(), targets.tolist(), strict=True)} - known)
    anchors, targets = np.array(pairs).T
    indptr, targets = _csr(anchors, targets)
    linked = np.flatnonzero(np.diff(indptr))
    edges = SupervisionEdges("a", "t", None, linked, np.append(indptr[linked], indptr[-1]), targets)
    of_history = KnownPositives(*_csr(history.anchors, history.targets))
    return JudgedRows.of_anchors(edges, KnownLinks((of_history,)), NUM_TARGETS)


def _history(rng: np.random.Generator, chance: np.ndarray, num: int = 4_000) -> LinkHistory:
    """Links by chance, [num_targets] or [100, num_targets] if it changes with time."""
    times = np.sort(rng.integers(0, 100, num))
    rows = np.broadcast_to(chance, (100, NUM_TARGETS))
    targets = np.array([rng.choice(NUM_TARGETS, p=rows[time]) for time in times])
    anchors = rng.integers(0, NUM_ANCHORS, num)
    pairs, first = np.unique(anchors * NUM_TARGETS + targets, return_index=True)
    anchors, targets, times = pairs // NUM_TARGETS, pairs % NUM_TARGETS, times[first]
    num_later = count_later(anchors, times)
    return LinkHistory((NUM_ANCHORS, NUM_TARGETS), anchors, targets, times, num_later=num_later)


def test_recent_popularity_is_added_where_it_rules() -> None:
    rng = np.random.default_rng(0)
    ages = np.abs(np.arange(100)[:, None] - np.linspace(0, 100, NUM_TARGETS))
    chance = np.exp(-ages / 5)
    chance /= chance.sum(axis=1, keepdims=True)
    history = _history(rng, chance)
    judged = _judged(
        history, rng.integers(0, NUM_ANCHORS, 600), rng.choice(NUM_TARGETS, 600, p=chance[-1])
    )
    settings = choose_settings([judged], [history])
    assert settings.trend > 0
    assert 0 < settings.trend_half_life < 20

    def ndcg(settings: RegressionSettings) -> float:
        scores = judged.scores(*LinkBasis.of(history, settings).rows(settings))
        return float(judged.ndcg(scores).mean())

    assert ndcg(settings) > 1.5 * ndcg(RegressionSettings())


@pytest.mark.parametrize("seed", [0, 1])
def test_random_links_have_no_trend_and_no_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    history = _history(rng, np.full(NUM_TARGETS, 1 / NUM_TARGETS))
    judged = _judged(history, rng.integers(0, NUM_ANCHORS, 900), rng.integers(0, NUM_TARGETS, 900))
    settings = choose_settings([judged], [history])
    scores = judged.scores(*LinkBasis.of(history, settings).rows(settings))
    chance = judged.ndcg(torch.rand(scores.shape, generator=torch.Generator().manual_seed(0)))
    assert float(judged.ndcg(scores).mean()) < float(chance.mean()) + 0.06


def test_encoder_and_regression_are_judged_alike() -> None:
    rng = np.random.default_rng(0)
    group = np.arange(NUM_TARGETS) % 4
    taste = rng.integers(0, 4, NUM_ANCHORS)
    anchors = rng.integers(0, NUM_ANCHORS, 3_000)
    targets = rng.integers(0, NUM_TARGETS // 4, 3_000) * 4 + taste[anchors]
    history = LinkHistory(
        (NUM_ANCHORS, NUM_TARGETS), *np.unique([anchors[:900], targets[:900]], axis=1), None
    )
    judged = [_judged(history, anchors[900:], targets[900:])]
    settings = RegressionSettings()
    rows = [LinkBasis.of(history, settings).rows(settings)]
    eye, noise = torch.eye(4), torch.randn(NUM_ANCHORS, 4)
    knows = [(eye[taste], eye[group])]
    knows_nothing = [(noise, torch.randn(NUM_TARGETS, 4))]
    (of_encoder, _), ndcg = choose_weights(judged, knows, rows, settings)
    assert of_encoder == 1
    assert ndcg == pytest.approx(float(judged[0].ndcg(judged[0].scores(*knows[0])).mean()))
    weights, ndcg_of_noise = choose_weights(judged, knows_nothing, rows, settings)
    assert weights[0] < 0.01 < weights[1]
    assert ndcg_of_noise < ndcg
    # a regression that knows nothing has no weight
    of_nothing = LinkHistory((NUM_ANCHORS, NUM_TARGETS), *rng.integers(0, 80, (2, 300)), None)
    nothing = [LinkBasis.of(of_nothing, settings).rows(settings)]
    assert choose_weights(judged, knows, nothing, settings)[0] == (1.0, 0.0)


def test_rows_of_anchors_are_computed_when_they_are_read() -> None:
    num = 2_000_000  # whose rows of 128 numbers would take 1 GB
    rng = np.random.default_rng(0)
    anchors, targets = np.unique(rng.integers(0, 200, (2, 4_000)), axis=1)
    few = LinkHistory((200, 200), anchors, targets, None)
    many = LinkHistory((num, 200), anchors, targets, None)
    settings = RegressionSettings()
    expected, of_targets = LinkBasis.of(few, settings).rows(settings)
    rows, also_of_targets = LinkBasis.of(many, settings).rows(settings)
    assert isinstance(rows, AnchorRows)
    assert len(rows) == num
    assert torch.equal(rows[:200], expected[:])
    assert torch.equal(also_of_targets, of_targets)
