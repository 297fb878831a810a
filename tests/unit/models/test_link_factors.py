"""Closed-form rows of links score as a ridge regression, and rank for anchors without links."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from raygnn.models import link_factors
from raygnn.models.link_factors import LinkBasis, LinkFactors, SpectralFilter

RNG = np.random.default_rng(0)


def _links(num_anchors: int, num_targets: int, num_links: int = 900) -> sparse.csr_matrix:
    likely = RNG.dirichlet(np.full(num_targets, 0.3), num_anchors)
    pairs = RNG.choice(num_anchors * num_targets, num_links, p=likely.ravel() / num_anchors)
    anchors, targets = np.unravel_index(np.sort(pairs), (num_anchors, num_targets))
    indptr = np.searchsorted(anchors, np.arange(num_anchors + 1))
    links = sparse.csr_matrix((np.ones(num_links), targets, indptr), (num_anchors, num_targets))
    links.sum_duplicates()  # some repeat
    return links


def _scores(basis: LinkBasis, weight: float = 1.0, **changes: float) -> np.ndarray:
    factors = LinkFactors()
    factors.weights[1] = weight
    factors.filter.copy_(torch.tensor(SpectralFilter()._replace(**changes)))
    anchors, targets = factors.rows(basis)
    return (anchors @ targets.T).numpy()


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
    settings = SpectralFilter(power, anchor_power=anchor_power)
    found = _scores(LinkBasis.of(links, settings), penalty=0.1, is_rescaled=is_rescaled)
    np.testing.assert_allclose(found, expected, atol=0.01 * expected.max())


def test_the_leading_directions_of_many_are_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_factors, "MAX_RANK", 64)
    monkeypatch.setattr(link_factors, "_MOST_EXACT", 0)
    links = _links(300, 250, 6_000)
    basis = LinkBasis.of(links, SpectralFilter(0.0))
    x = links.toarray()
    x /= x.sum(axis=1, keepdims=True).clip(1) ** 0.5
    roots = np.linalg.svd(x, compute_uv=False)
    assert len(basis.values) == 64
    np.testing.assert_allclose(basis.values[:32], np.square(roots / roots[0])[:32], rtol=0.02)


def test_an_anchor_without_links_is_recommended_what_is_popular() -> None:
    links = _links(300, 60, 4000)
    links = sparse.vstack([links, sparse.csr_matrix((1, 60))]).tocsr()
    counts = np.asarray(links.sum(axis=0)).ravel()
    score = _scores(LinkBasis.of(links, SpectralFilter()))[-1]
    assert np.corrcoef(score, counts)[0, 1] > 0.95
    assert counts[score.argmax()] > np.quantile(counts, 0.9)


def test_nodes_without_links_change_no_bit_of_the_others() -> None:
    """Nodes that come later have no links as of an earlier time."""
    links = _links(80, 50)
    more = sparse.block_diag([links, sparse.csr_matrix((5, 9))]).tocsr()
    alone, among = LinkBasis.of(links, SpectralFilter()), LinkBasis.of(more, SpectralFilter())
    np.testing.assert_array_equal(among.values, alone.values)
    np.testing.assert_array_equal(among.directions[:50], alone.directions)
    np.testing.assert_array_equal(among.anchors[:80], alone.anchors)
    np.testing.assert_array_equal(
        LinkBasis.of(more, SpectralFilter(), np.array([3, 7])).anchors, alone.anchors[[3, 7]]
    )


def test_added_anchors_are_scored_by_their_links_as_if_they_had_been_there() -> None:
    links = _links(80, 50)
    basis = LinkBasis.of(links, SpectralFilter())
    wanted = np.array([3, 7, 11])
    added = basis.extended((82, 52), np.array([80, 80, 80, 81]), np.array([*wanted, 51]))
    found = _scores(added)
    expected = basis.prior + basis.directions[wanted].sum(axis=0)
    np.testing.assert_allclose(added.anchors[80], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(added.anchors[81], basis.prior, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[:80, :50], _scores(basis), rtol=1e-4, atol=1e-6)
    average = found[:, :50].mean(axis=1)  # of targets with links, as all have
    np.testing.assert_allclose(found[:, 51], average, rtol=1e-4, atol=1e-6)


def test_links_count_less_the_more_later_links_their_anchor_has() -> None:
    links = _links(80, 50)
    num_later = RNG.integers(0, 9, links.nnz).astype(float)
    basis = LinkBasis.of(links, SpectralFilter(), num_later=num_later)
    aged = links.copy()
    aged.data *= 0.1 + 0.9 * 0.5 ** (num_later / 3)
    expected = basis.prior + aged @ basis.directions
    np.testing.assert_allclose(basis.rows_of_anchors(3.0), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(basis.rows_of_anchors(0.0), basis.anchors)


def test_the_weight_is_a_factor_of_scores_and_either_part_may_be_left_out() -> None:
    basis = LinkBasis.of(_links(80, 50), SpectralFilter())
    np.testing.assert_allclose(_scores(basis, weight=4.0), 4 * _scores(basis), rtol=1e-4, atol=1e-6)
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


def test_older_states_load() -> None:
    factors = LinkFactors()
    factors.load_state_dict({"weights": torch.tensor([0.0, 2.0]), "l2": torch.tensor(100.0)})
    assert factors.is_used
    factors.load_state_dict({"weights": factors.weights, "filter": torch.tensor([0.5, 9, 1, 0])})
    assert factors.settings == SpectralFilter(0.5, 9, 1)
