"""Closed-form rows of links: they score as EASE does, and rank for anchors without links."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from raygnn.models import link_factors
from raygnn.models.linear_recommenders import ease
from raygnn.models.link_factors import LinkBasis, LinkFactors

RNG = np.random.default_rng(0)


def _links(num_anchors: int, num_targets: int, num_links: int = 900) -> sparse.csr_matrix:
    likely = RNG.dirichlet(np.full(num_targets, 0.3), num_anchors)
    pairs = RNG.choice(num_anchors * num_targets, num_links, p=likely.ravel() / num_anchors)
    anchors, targets = np.unravel_index(np.sort(pairs), (num_anchors, num_targets))
    indptr = np.searchsorted(anchors, np.arange(num_anchors + 1))
    # As edges of a graph, in which some repeat.
    return sparse.csr_matrix((np.ones(num_links), targets, indptr), (num_anchors, num_targets))


def _scores(basis: LinkBasis, l2: float = 100.0, weight: float = 1.0) -> np.ndarray:
    factors = LinkFactors()
    factors.weights[1], factors.l2 = weight, torch.tensor(l2)
    anchors, targets = factors.rows(basis)
    return (anchors @ targets.T).numpy()


@pytest.mark.parametrize(("num_anchors", "num_targets"), [(80, 50), (40, 90)])
@pytest.mark.parametrize("dense", [True, False])
def test_pairs_without_a_link_are_scored_as_by_ease(
    num_anchors: int, num_targets: int, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_factors, "_PRIOR", 0.0)
    if not dense:
        monkeypatch.setattr(link_factors, "_MOST_DENSE", 0)
        monkeypatch.setattr(link_factors, "_RANK", min(num_anchors, num_targets) - 1)
    links = _links(num_anchors, num_targets)
    coo = links.tocoo()
    rows, weights = ease(coo.row.astype(np.int64), coo.col.astype(np.int64), links.shape, l2=20.0)
    expected = (rows @ weights.T).numpy()
    found = _scores(LinkBasis.of(links), l2=20.0)
    is_link = links.toarray() > 0
    tolerance = 1e-4 if dense else 0.02  # the last direction is left out
    np.testing.assert_allclose(found[~is_link], expected[~is_link], atol=tolerance)


def test_an_anchor_without_links_is_recommended_what_is_popular() -> None:
    links = _links(300, 60, 4000)
    links = sparse.vstack([links, sparse.csr_matrix((1, 60))]).tocsr()
    counts = np.asarray((links > 0).sum(axis=0)).ravel()
    score = _scores(LinkBasis.of(links))[-1]
    assert np.corrcoef(score, counts)[0, 1] > 0.95
    assert score.argmax() == counts.argmax()


def test_added_anchors_are_scored_by_their_links_as_if_they_had_been_there() -> None:
    links = _links(80, 50)
    basis = LinkBasis.of(links)
    wanted = np.array([3, 7, 11])
    added = basis.extended((82, 52), np.array([80, 80, 80, 81]), np.array([*wanted, 51]))
    found = _scores(added)
    expected = basis.prior + basis.targets[wanted].sum(axis=0)
    np.testing.assert_allclose(added.anchors[80], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(added.anchors[81], basis.prior, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[:80, :50], _scores(basis), rtol=1e-5)
    assert not found[:, 50:].any()  # new targets


def test_the_weight_is_a_factor_of_scores_and_either_part_may_be_left_out() -> None:
    basis = LinkBasis.of(_links(80, 50))
    np.testing.assert_allclose(_scores(basis, weight=4.0), 4 * _scores(basis), rtol=1e-4)
    factors = LinkFactors()
    assert not factors.is_used
    encoded = torch.randn(80, 3)
    factors.weights.copy_(torch.tensor([0.0, 2.0]))
    joined = factors.join(encoded, factors.rows(basis)[0])
    assert factors.is_used
    ignored = LinkFactors(is_ignored=True)
    ignored.load_state_dict(factors.state_dict())
    assert not ignored.is_used
    assert not joined[:, :3].any()
