"""Closed forms of recommenders, against the problems that they solve."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygnn.recommender.peers import ease, ials

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
