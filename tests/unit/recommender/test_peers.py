"""Closed forms of recommenders, against the problems that they solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from raygnn.recommender.known_links import LinkHistory
from raygnn.recommender.peers import PeersInTime, RowScores, ease, folded_in, ials

NUM_NODES = 30, 12


def _links() -> tuple[np.ndarray, np.ndarray]:
    pairs = np.unique(np.random.default_rng(0).integers(0, 30 * 12, 150))
    return pairs // 12, pairs % 12


@pytest.mark.parametrize("has_more_targets", [False, True])
def test_ease_has_no_gradient_but_on_the_diagonal(*, has_more_targets: bool) -> None:
    ends, num_nodes = (
        (_links()[::-1], NUM_NODES[::-1]) if has_more_targets else (_links(), NUM_NODES)
    )
    links, weights = (rows.double() for rows in ease(*ends, num_nodes, l2=3.0))
    of_pairs = weights.T  # of the column's target on the row's
    gradient = links.T @ (links @ of_pairs - links) + 3.0 * of_pairs
    assert of_pairs.diagonal().abs().max() == 0
    gradient.fill_diagonal_(0)
    assert gradient.abs().max() < 1e-4


def test_ials_solves_the_last_half_step_exactly_and_lowers_the_loss() -> None:
    anchors, targets = _links()
    links = torch.zeros(NUM_NODES, dtype=torch.float64)
    links[torch.from_numpy(anchors), torch.from_numpy(targets)] = 1

    def loss(rows: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        error = (rows[0] @ rows[1].T - links).square() * (1 + 2.0 * links)
        return error.sum() + 0.5 * (rows[0].square().sum() + rows[1].square().sum())

    args = {"channels": 4, "l2": 0.5, "weight": 2.0}
    early, late = (
        tuple(rows.double() for rows in ials(anchors, targets, NUM_NODES, num_iterations=n, **args))
        for n in (1, 10)
    )
    assert loss(late) < 0.9 * loss(early)
    of_targets = late[1].clone().requires_grad_()
    loss((late[0], of_targets)).backward()
    assert of_targets.grad is not None
    assert of_targets.grad.abs().max() < 1e-3


NUM_USERS, NUM_ITEMS, NUM_LINKS, NUM_ROWS = 20, 8, 300, 40
METHODS: dict[str, Callable[[PeersInTime], RowScores]] = {
    "popularity": PeersInTime.popularity,
    "recent": lambda peers: peers.popularity(20.0),
    "own": PeersInTime.own_targets,
    "ease": lambda peers: peers.ease(3.0),
    "ials": lambda peers: peers.ials(3.0),
    "last": lambda peers: peers.known_last(peers.ease(3.0)),
}


def _peers(seed: int, num_times: int) -> PeersInTime:
    rng = np.random.default_rng(seed)
    user, item = rng.integers(0, NUM_USERS, NUM_LINKS), rng.integers(0, NUM_ITEMS, NUM_LINKS)
    history = LinkHistory((NUM_USERS, NUM_ITEMS), user, item, rng.integers(0, 100, NUM_LINKS))
    anchors = rng.integers(0, NUM_USERS, NUM_ROWS)
    return PeersInTime(history, anchors, rng.choice([30, 55, 70, 90][:num_times], NUM_ROWS))


@pytest.mark.parametrize("method", METHODS)
def test_nothing_later_than_a_row_counts(method: str) -> None:
    """Nor do other rows, at times at which a peer is fitted."""
    peers = _peers(0, num_times=4)
    every = METHODS[method](peers)(np.arange(NUM_ROWS))
    for time in np.unique(peers.times):
        rows = np.flatnonzero(peers.times == time)
        earlier = replace(peers, history=peers.history.as_of(time))
        torch.testing.assert_close(METHODS[method](earlier)(rows), every[torch.from_numpy(rows)])
        alone = PeersInTime(peers.history, peers.anchors[rows[:3]], peers.times[rows[:3]])
        found = METHODS[method](alone)(np.array([2, 0, 2]))
        torch.testing.assert_close(found, every[torch.from_numpy(rows[[2, 0, 2]])])


def test_ease_and_ials_are_those_of_the_links_until_a_time() -> None:
    peers = _peers(1, num_times=3)
    of_ease, of_ials = (
        peers_of(np.arange(NUM_ROWS)) for peers_of in (peers.ease(3), peers.ials(3))
    )
    for row, (anchor, time) in enumerate(zip(peers.anchors, peers.times, strict=True)):
        known = peers.history.as_of(time)
        links = known.anchors, known.targets, known.num_nodes
        anchors, targets = ease(*links, l2=3)
        torch.testing.assert_close(of_ease[row], anchors[anchor] @ targets.T)
        _, targets = ials(*links, l2=3)
        counts = known.matrix()[[anchor]].astype(np.float32)
        torch.testing.assert_close(of_ials[row], (folded_in(counts, targets, 3) @ targets.T)[0])


def test_with_many_times_a_row_reads_the_last_fit_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own links are those of its time."""
    monkeypatch.setattr("raygnn.recommender.peers._MOST_TARGETS", 1)
    peers = _peers(2, num_times=4)
    found = peers.ease(3)(np.arange(NUM_ROWS))
    first = peers.history.as_of(peers.times.min())
    _, targets = ease(first.anchors, first.targets, first.num_nodes, l2=3)
    expected = peers.known(np.arange(NUM_ROWS)).sign() @ targets.T.numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_rows_before_all_links_are_ranked() -> None:
    peers = _peers(3, num_times=2)
    before = replace(peers, times=np.full(NUM_ROWS, -1))
    for method in METHODS.values():
        scores = method(before)(np.arange(NUM_ROWS))
        assert (scores == scores[:, :1]).all()
