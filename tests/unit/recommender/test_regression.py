"""Rows of links score as a ridge regression, and rank for anchors and targets without links."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from raygnn.recommender import regression
from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.recommender import LinearRecommender
from raygnn.recommender.regression import LinkBasis, RegressionSettings

RNG = np.random.default_rng(0)


def _links(num_anchors: int, num_targets: int, num_links: int = 900) -> sparse.csr_matrix:
    likely = RNG.dirichlet(np.full(num_targets, 0.3), num_anchors)
    pairs = RNG.choice(num_anchors * num_targets, num_links, p=likely.ravel() / num_anchors)
    anchors, targets = np.unravel_index(np.sort(pairs), (num_anchors, num_targets))
    indptr = np.searchsorted(anchors, np.arange(num_anchors + 1))
    links = sparse.csr_matrix((np.ones(num_links), targets, indptr), (num_anchors, num_targets))
    links.sum_duplicates()  # some repeat
    return (links > 0).astype(float)


def _history(links: sparse.csr_matrix, **columns: np.ndarray) -> LinkHistory:
    anchors, targets = (ends.astype(np.int64) for ends in links.nonzero())
    return LinkHistory(links.shape, anchors, targets, columns.pop("times", None), **columns)


def _basis(links: sparse.csr_matrix, **columns: np.ndarray) -> LinkBasis:
    return LinkBasis.of(_history(links, **columns), RegressionSettings())


def _scores(basis: LinkBasis, attributes: np.ndarray | None = None, **changes: float) -> np.ndarray:
    anchors, targets = basis.rows(RegressionSettings()._replace(**changes), attributes)
    return (anchors[:] @ targets.T).numpy()


@pytest.mark.parametrize(("num_anchors", "num_targets"), [(80, 50), (40, 90), (3, 2)])
@pytest.mark.parametrize(("power", "anchor_power"), [(0.0, 0.5), (0.5, 0.25)])
@pytest.mark.parametrize("is_rescaled", [False, True])
def test_scores_are_those_of_a_ridge_regression_of_normalized_links(
    num_anchors: int, num_targets: int, power: float, anchor_power: float, is_rescaled: bool
) -> None:
    links = _links(num_anchors, num_targets)
    x = links.toarray()
    of_anchors, of_targets = (np.maximum(x.sum(axis), 1) for axis in (1, 0))
    normalized = x / of_anchors[:, None] ** anchor_power / of_targets**power
    gram = normalized.T @ normalized
    penalty = 0.1 * np.linalg.eigvalsh(gram)[-1]
    weights = gram @ np.linalg.inv(gram + penalty * np.eye(num_targets))
    expected = x / of_targets**power @ weights * of_targets ** (power * is_rescaled)
    settings = RegressionSettings(power, anchor_power=anchor_power)
    basis = LinkBasis.of(_history(links), settings)
    found = _scores(basis, penalty=0.1, is_rescaled=is_rescaled)
    np.testing.assert_allclose(found, expected, atol=0.01 * expected.max())


@pytest.mark.parametrize("is_dense", [False, True])
def test_the_leading_directions_of_many_are_accurate(
    monkeypatch: pytest.MonkeyPatch, *, is_dense: bool
) -> None:
    monkeypatch.setattr(regression, "RANKS", (64,))
    monkeypatch.setattr(regression, "_MOST_EXACT", 0)
    monkeypatch.setattr(regression, "_MOST_DENSE", 10**6 if is_dense else 0)
    monkeypatch.setattr(regression, "_ANCHORS_AT_A_TIME", 70)
    links = _links(300, 250, 6_000)
    basis = LinkBasis.of(_history(links), RegressionSettings(0.0))
    x = links.toarray()
    x /= x.sum(axis=1, keepdims=True).clip(1) ** 0.5
    roots = np.linalg.svd(x, compute_uv=False)
    assert len(basis.values) == 64
    np.testing.assert_allclose(basis.values[:32], np.square(roots / roots[0])[:32], rtol=0.02)


def test_an_anchor_without_links_is_recommended_what_is_popular() -> None:
    links = _links(300, 60, 4000)
    links = sparse.vstack([links, sparse.csr_matrix((1, 60))]).tocsr()
    counts = np.asarray(links.sum(axis=0)).ravel()
    score = _scores(_basis(links))[-1]
    assert np.corrcoef(score, counts)[0, 1] > 0.95
    assert counts[score.argmax()] > np.quantile(counts, 0.9)


def test_nodes_without_links_change_no_bit_of_the_others() -> None:
    """Nodes that come later have no links as of an earlier time."""
    links = _links(80, 50)
    more = sparse.block_diag([links, sparse.csr_matrix((5, 9))]).tocsr()
    alone, among = _basis(links), _basis(more)
    np.testing.assert_array_equal(among.values, alone.values)
    np.testing.assert_array_equal(among.directions[:50], alone.directions)
    every = alone.rows(RegressionSettings())[0][:]
    assert torch.equal(among.rows(RegressionSettings())[0][:80], every)
    some = LinkBasis.of(_history(more), RegressionSettings(), np.array([3, 7]))
    assert torch.equal(some.rows(RegressionSettings())[0][:], every[[3, 7]])


def test_added_anchors_are_scored_by_their_links_as_if_they_had_been_there() -> None:
    links = _links(80, 50)
    basis = _basis(links)
    wanted = np.array([3, 7, 11])
    added = basis.extended((82, 52), np.array([80, 80, 80, 81]), np.array([*wanted, 51]))
    found = _scores(added)
    np.testing.assert_allclose(found[80], _of_links(added, wanted), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[81], _of_links(added, wanted[:0]), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[:80, :50], _scores(basis), rtol=1e-4, atol=1e-6)
    average = found[:, :50].mean(axis=1)  # of targets with links, as all have
    np.testing.assert_allclose(found[:, 51], average, rtol=1e-4, atol=1e-6)


def _of_links(basis: LinkBasis, targets: np.ndarray) -> np.ndarray:
    """Scores for an anchor with these links."""
    settings = RegressionSettings()
    row = basis.prior + basis.directions[targets].sum(axis=0)
    row *= basis.values / (basis.values + settings.penalty)
    return row @ basis.rows(settings)[1].numpy().T


def test_links_count_less_the_more_later_links_their_anchor_has() -> None:
    links = _links(80, 50)
    num_later = RNG.integers(0, 9, links.nnz).astype(float)
    basis = _basis(links, num_later=num_later)
    expected = links.toarray()
    expected[links.nonzero()] *= 0.1 + 0.9 * 0.5 ** (num_later / 3)
    np.testing.assert_allclose(basis.weighed(3.0).toarray(), expected, rtol=1e-6)
    assert basis.weighed(0.0) is basis.links


def test_the_trend_adds_popularity_in_which_old_links_fade() -> None:
    links = _links(80, 50)
    times = RNG.integers(0, 100, links.nnz)
    basis = _basis(links, times=times)
    recent = np.bincount(links.nonzero()[1], 0.5 ** ((times.max() - times) / 7), 50)
    expected = _scores(basis) + 3 * recent / recent.max()
    found = _scores(basis, trend=3.0, trend_half_life=7.0)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_target_without_links_is_ranked_by_its_attributes() -> None:
    """Anchors link to targets of one of four groups, which attributes show with noise."""
    group, is_cold = np.arange(60) % 4, np.arange(60) >= 48
    likes = (RNG.integers(0, 4, 300)[:, None] == group) & (RNG.random((300, 60)) < 0.3) & ~is_cold
    attributes = np.eye(4)[group] + 0.1 * RNG.normal(size=(60, 4))
    basis = _basis(sparse.csr_matrix(likes.astype(float)))
    own = np.array([group[row.argmax()] for row in likes])
    cold = _scores(basis, np.c_[attributes, np.ones(60)])[:, is_cold]
    assert (group[is_cold][cold.argmax(axis=1)] == own).mean() > 0.95
    without = _scores(basis)[:, is_cold]
    np.testing.assert_allclose(without, without[:, :1].repeat(12, 1), rtol=1e-4, atol=1e-6)
    noise = _scores(basis, RNG.normal(size=(60, 4)))  # says nothing: nearly the mean
    assert np.abs(noise[:, is_cold] - without).max() < 0.5 * np.abs(cold - without).max()
    np.testing.assert_array_equal(noise[:, ~is_cold], _scores(basis)[:, ~is_cold])


def test_either_part_of_a_blend_may_be_left_out() -> None:
    basis, recommender = _basis(_links(80, 50)), LinearRecommender()
    assert not recommender.is_used
    encoded = torch.randn(80, 3), torch.randn(50, 3)
    recommender.weights.copy_(torch.tensor([0.0, 4.0]))
    assert recommender.is_used
    anchors, targets = recommender.blend(encoded, recommender.rows(basis))
    np.testing.assert_allclose(anchors[:] @ targets.T, 4 * _scores(basis), rtol=1e-4, atol=1e-6)
    assert not anchors[:][:, :3].any()
    ignored = LinearRecommender(is_ignored=True)
    ignored.load_state_dict(recommender.state_dict())
    assert not ignored.is_used


def test_states_with_fewer_settings_load() -> None:
    recommender = LinearRecommender()
    recommender.load_state_dict(
        {"weights": recommender.weights, "filter": torch.tensor([0.5, 9, 1, 0])}
    )
    assert recommender.settings == RegressionSettings(0.5, 9, 1)
