"""Recommenders without gradients. Scores are products of the rows of both ends."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch.nn import functional


def ease(
    anchors: np.ndarray, targets: np.ndarray, num_nodes: tuple[int, int], l2: float = 100.0
) -> tuple[Tensor, Tensor]:
    """Regression of each target on all others, in closed form.

    Needs memory for num_targets^2 and num_anchors * num_targets numbers, and time for the inverse
    of a matrix of the smaller side.

    Args:
        anchors, targets: int64 [num_links], dense ids.
        num_nodes: numbers of anchors and of targets.
        l2: penalty of the weights.
    Returns:
        float32 [num_anchors, num_targets] and [num_targets, num_targets].

    Source: Steck, Embarrassingly Shallow Autoencoders for Sparse Data, WWW 2019, equation 8.
    """
    links = link_matrix(anchors, targets, num_nodes)
    return torch.from_numpy(links.toarray()), ease_weights(links, l2)


def link_matrix(
    anchors: np.ndarray, targets: np.ndarray, num_nodes: tuple[int, int]
) -> sparse.csr_matrix:
    """float32 [num_anchors, num_targets], 1 for each pair that is linked."""
    links = sparse.csr_matrix((np.ones(len(anchors), np.float32), (anchors, targets)), num_nodes)
    links.sum_duplicates()
    links.data[:] = 1
    return links


def ease_weights(links: sparse.csr_matrix, l2: float) -> Tensor:
    """Targets' rows of `ease`, float32 [num_targets, num_targets], from links to them."""
    ones = links[np.diff(links.indptr) > 0].astype(np.float64)
    if ones.shape[0] < ones.shape[1]:  # Woodbury's identity: l2 times the inverse of links^T links
        across = ones.T @ _inverse((ones @ ones.T).toarray(), l2).numpy()
        inverse = torch.from_numpy(-(ones.T @ across.T))
        inverse.diagonal().add_(1)
    else:
        inverse = _inverse((ones.T @ ones).toarray(), l2)
    weights = -inverse / inverse.diagonal()
    weights.fill_diagonal_(0)
    return weights.T.float()


def _inverse(square: np.ndarray, l2: float) -> Tensor:
    gram = torch.from_numpy(square)
    gram.diagonal().add_(l2)
    return torch.cholesky_inverse(torch.linalg.cholesky(gram))


def ials(
    anchors: np.ndarray,
    targets: np.ndarray,
    num_nodes: tuple[int, int],
    channels: int = 32,
    l2: float = 10.0,
    weight: float = 1.0,
    num_iterations: int = 15,
) -> tuple[Tensor, Tensor]:
    """Factorizes the matrix of links by alternating least squares.

    Args:
        anchors, targets: int64 [num_links], dense ids.
        num_nodes: numbers of anchors and of targets.
        weight: added for a link to the weight 1 of every pair.
        l2: penalty of the factors.
    Returns:
        float32 [num_anchors, channels] and [num_targets, channels]. Nodes without links have zeros
        and take no time.

    Source: Hu, Koren and Volinsky, Collaborative Filtering for Implicit Feedback Datasets, ICDM
    2008, equation 4.
    """
    linked_anchors, rows = np.unique(anchors, return_inverse=True)
    linked_targets, columns = np.unique(targets, return_inverse=True)
    ones, shape = np.ones(len(rows), np.float32), (len(linked_anchors), len(linked_targets))
    by_anchor = sparse.csr_matrix((ones, (rows, columns)), shape)
    by_target = by_anchor.T.tocsr()
    generator = torch.Generator().manual_seed(0)
    of_targets = 0.1 * torch.randn(len(linked_targets), channels, generator=generator)
    for _ in range(num_iterations):
        of_anchors = folded_in(by_anchor, of_targets, l2, weight)
        of_targets = folded_in(by_target, of_anchors, l2, weight)
    factors = torch.zeros(num_nodes[0], channels), torch.zeros(num_nodes[1], channels)
    factors[0][linked_anchors], factors[1][linked_targets] = of_anchors, of_targets
    return factors


def factorize(
    ends: np.ndarray,
    values: np.ndarray,
    num_nodes: tuple[int, int],
    channels: int,
    l2: tuple[float, float],
    num_iterations: int = 10,
) -> tuple[np.ndarray, np.ndarray]:
    """Factors and biases of a matrix with few known values, by alternating least squares.

    Source u and target v have the value b_u + b_v + p_u p_v; see `factorized`. Values have mean 0.

    Args:
        ends: int64 [2, num_edges], dense ids of sources and targets.
        values: float [num_edges].
        channels: width of p; 0 fits biases alone.
        l2: penalties of a bias and of a factor, as if a node had so many more values of 0.
    Returns:
        float64 [num_nodes, 1 + channels] of sources and of targets: b and p. Nodes without a value
        have zeros.
    Source: Koren, Bell and Volinsky, Matrix Factorization Techniques for Recommender Systems,
        Computer 42 (2009), equation 4.
    """
    rng = np.random.default_rng(0)
    damping = np.diag([l2[0], *[l2[1]] * channels])
    rows = [np.zeros((num, 1 + channels)) for num in num_nodes]
    rows[1][:, 1:] = 0.1 * rng.normal(size=(num_nodes[1], channels))
    orders = [np.argsort(ids, kind="stable") for ids in ends]
    for _ in range(num_iterations):
        for own, order in enumerate(orders):
            of_others = rows[1 - own][ends[1 - own][order]]
            x = np.concatenate([np.ones((len(order), 1)), of_others[:, 1:]], axis=1)
            rows[own] = _ridge(
                ends[own][order], x, values[order] - of_others[:, 0], damping, num_nodes[own]
            )
    return rows[0], rows[1]


def factorized(sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """[num_edges], the values of `factorize` from the rows of both ends of each edge."""
    return sources[:, 0] + targets[:, 0] + (sources[:, 1:] * targets[:, 1:]).sum(axis=1)


def _ridge(
    ids: np.ndarray, x: np.ndarray, y: np.ndarray, damping: np.ndarray, num_nodes: int
) -> np.ndarray:
    """Ridge regressions of y on x, one per id; ids ascend."""
    out = np.zeros((num_nodes, x.shape[1]))
    found, first = np.unique(ids, return_index=True)
    gram = np.add.reduceat(x[:, :, None] * x[:, None, :], first, axis=0) + damping
    moment = np.add.reduceat(x * y[:, None], first, axis=0)
    out[found] = np.linalg.solve(gram, moment[:, :, None])[:, :, 0]
    return out


def folded_in(
    links: sparse.csr_matrix, rows: Tensor, l2: float = 10.0, weight: float = 1.0
) -> Tensor:
    """Factors of one side of `ials`, [num_own, channels], from its links and the factors of the
    other side.
    """
    channels = rows.shape[1]
    upper = torch.triu_indices(channels, channels)
    sums = functional.embedding_bag(
        torch.from_numpy(links.indices),
        torch.cat([rows[:, upper[0]] * rows[:, upper[1]], rows], dim=1),
        torch.from_numpy(links.indptr),
        mode="sum",
        per_sample_weights=torch.from_numpy(links.data),
        include_last_offset=True,
    )
    squares, right = sums.split([upper.shape[1], channels], dim=1)
    left = rows.new_empty(len(squares), channels, channels)
    left[:, upper[0], upper[1]] = left[:, upper[1], upper[0]] = weight * squares
    left += rows.T @ rows + l2 * torch.eye(channels)
    solved: Tensor = torch.linalg.solve(left, (1 + weight) * right)
    return solved
