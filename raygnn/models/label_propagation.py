"""Classes of nodes from the training labels around them, beside the scores of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from raygnn.data.hashing import splitmix64_array
from raygnn.data.splits import Splits
from raygnn.device_memory import copied

#: Weights of a further hop, for validation to choose from.
_DECAYS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_DEFAULT = 0.8  # without validation nodes
_NUM_HOPS = 40
_PRIOR = 0.03  # labels of unknown nodes that each node sees, in means of what nodes see
_NUM_FOLDS = 5
_MOST_JUDGED = 1 << 14  # validation nodes that choose weights
#: Expected size of weights, which keeps them finite if they separate all validation nodes.
_LARGE = 10.0
_ENCODER_ONLY = (0.0, 0.0, 1.0)
_MAX_NEWTON, _CLOSE, _LEAST = 50, 1e-9, 1e-300


@dataclass(frozen=True)
class PropagatedLabels:
    """Classes of the training nodes around each node.

    Attributes:
        rows: float32 [num_nodes, num_classes], logarithm of the shares of the classes around a
            node, divided by those among all training nodes. No row depends on its node's own label:
            training nodes see the labels of other folds.
        prior: float32 [num_classes], logarithm of the shares among all training nodes.
        weights: of the rows and of the prior, if they predict alone.
        reach: number of the weight of each further hop.
    """

    rows: np.ndarray
    prior: np.ndarray
    weights: tuple[float, float]
    reach: int

    @classmethod
    def of(
        cls,
        adjacency: sparse.csr_matrix,
        first: int,
        labels: np.ndarray,
        splits: Splits,
        num: int,
        reach: int | None = None,
    ) -> PropagatedLabels:
        """Propagates the training labels. Validation nodes choose how far, unless `reach` says.

        Args:
            adjacency: symmetric weights of edges between nodes of all types.
            first: row of the first labelled node.
            labels: int [num_nodes]; only those of training and validation nodes are read.
            num: number of classes.
        Source: Zhou et al., Learning with Local and Global Consistency, NeurIPS 2003, of which the
            node's own label is left out.
        """
        train, val = np.asarray(splits.train), np.asarray(splits.val)[:_MOST_JUDGED]
        counts = np.bincount(labels[train], minlength=num)
        prior = np.log(np.maximum(counts, 0.5) / len(train)).astype(np.float32)
        degrees = np.maximum(np.asarray(adjacency.sum(axis=1)).ravel(), 1)
        scale = sparse.diags(degrees**-0.5)
        normalized = (scale @ adjacency @ scale).astype(np.float32).tocsr()

        def propagated(known: np.ndarray, decays: Sequence[float]) -> list[np.ndarray]:
            spread = np.zeros((len(degrees), num), np.float32)
            spread[first + known, labels[known]] = 1
            sums = [np.zeros((len(labels), num), np.float32) for _ in decays]
            for hop in range(_NUM_HOPS):
                spread = normalized @ spread
                for decay, total in zip(decays, sums, strict=True):
                    total += np.float32(decay**hop) * spread[first : first + len(labels)]
            return [_log_ratios(total, prior) for total in sums]

        decays = _DECAYS if reach is None else _DECAYS[reach : reach + 1]
        rows_of = dict(zip(decays, propagated(train, decays), strict=True))
        decay, weights = _DEFAULT if reach is None else decays[0], (1.0, 1.0)
        if len(val):
            losses = {}
            for each, rows in rows_of.items():
                scores = [rows[val], np.broadcast_to(prior, rows[val].shape)]
                losses[each] = fit_weights(scores, labels[val])
            decay = min(losses, key=lambda each: float(losses[each][1].mean()))
            of_rows, of_prior = losses[decay][0]
            weights = float(of_rows), float(of_prior)
        rows = rows_of[decay]
        folds = splitmix64_array(train.astype(np.uint64)) % np.uint64(_NUM_FOLDS)
        for fold in range(_NUM_FOLDS):
            (of_others,) = propagated(train[folds != fold], [decay])
            rows[train[folds == fold]] = of_others[train[folds == fold]]
        return cls(rows, prior, weights, _DECAYS.index(decay))

    def predicted(self, nodes: np.ndarray) -> np.ndarray:
        """float32 [num_nodes, num_classes], logits from the labels alone."""
        of_rows, of_prior = self.weights
        return of_rows * self.rows[nodes] + of_prior * self.prior


def _log_ratios(sums: np.ndarray, prior: np.ndarray) -> np.ndarray:
    seen = sums.sum(axis=1, keepdims=True)
    least = max(_PRIOR * float(seen.mean()), 1e-12)
    shares = (sums + least * np.exp(prior)) / (seen + least)
    return (np.log(shares) - prior).astype(np.float32)


def fit_weights(
    scores: Sequence[np.ndarray], labels: np.ndarray, of_rows: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of several scores [num_nodes, num_classes] whose sum predicts the labels best.

    `of_rows`: weights of the rows, float64 [num_nodes].

    Returns:
        float64 weights, the last at least 0, and the cross-entropy of each node.
    """
    stacked = np.stack([each.astype(np.float64) for each in scores], axis=1)
    own = stacked[np.arange(len(labels)), :, labels]
    of_rows = np.ones(len(labels)) if of_rows is None else of_rows
    shares_of_rows = of_rows / of_rows.sum()
    penalty = 1 / (_LARGE**2 * of_rows.sum())

    def losses(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = np.einsum("k,nkc->nc", weights, stacked)
        logits -= logits.max(axis=1, keepdims=True)
        sums = np.exp(logits).sum(axis=1, keepdims=True)
        shares = np.exp(logits) / sums
        return -np.log(np.maximum(shares[np.arange(len(labels)), labels], _LEAST)), shares

    def penalized(weights: np.ndarray) -> float:
        loss = shares_of_rows @ losses(weights)[0]
        return float(loss + penalty / 2 * np.square(weights).sum())

    weights = np.zeros(len(scores))
    for _ in range(_MAX_NEWTON):
        _, shares = losses(weights)
        expected = np.einsum("nkc,nc->nk", stacked, shares)
        slope = shares_of_rows @ (expected - own) + penalty * weights
        weighted = shares * shares_of_rows[:, None]
        curvature = np.einsum("nkc,nlc,nc->kl", stacked, stacked, weighted)
        curvature -= (expected.T * shares_of_rows) @ expected
        curvature += penalty * np.eye(len(weights))
        step = np.linalg.solve(curvature, slope)
        while penalized(weights - step) > penalized(weights) and np.abs(step).max() > _CLOSE:
            step /= 2
        weights = weights - step
        if np.abs(step).max() <= _CLOSE:
            break
    if weights[-1] < 0:
        others = fit_weights(scores[:-1], labels, of_rows)[0] if scores[1:] else np.empty(0)
        weights = np.append(others, 0.0)
    return weights, losses(weights)[0]


class LabelScores(nn.Module):
    """Adds the classes of the training nodes around a node to the logits of an encoder.

    Attributes:
        weights: of the prior, of the rows and of the encoder, which has all at first.
        reach: of `PropagatedLabels`.
    """

    weights: Tensor
    reach: Tensor
    #: A checkpoint may lack the buffers: the next validation computes them.
    is_computed = True
    #: The last weights that were read, their version, and whether they are used: reading waits.
    _read: tuple[Tensor | None, int, bool] = (None, 0, False)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor(_ENCODER_ONLY))
        self.register_buffer("reach", torch.tensor(_DECAYS.index(_DEFAULT)))

    @property
    def is_used(self) -> bool:
        weights, version, is_used = self._read
        if weights is not self.weights or version != weights._version:
            is_used = bool(self.weights[1] != 0)
            self._read = self.weights, self.weights._version, is_used
        return is_used

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        for name, buffer in self.named_buffers():
            state.setdefault(f"{prefix}{name}", buffer)
        super()._load_from_state_dict(state, prefix, *args)

    def reset(self) -> None:
        """Leaves all weight to the encoder."""
        self.weights.copy_(copied(torch.tensor(_ENCODER_ONLY), self.weights.device))

    def weigh(
        self, around: PropagatedLabels, logits: Tensor, nodes: Tensor, labels: Tensor
    ) -> None:
        """Sets the weights that predict the labels of some nodes best.

        The encoder keeps all weight if the others lower the cross-entropy of its scaled logits by
        no more than a standard error.

        Args:
            logits: [num_nodes, num_classes], of the encoder.
            nodes: int64 [num_nodes], dense ids.
        """
        self.reach.fill_(around.reach)
        rows = around.rows[nodes.cpu().numpy()]
        of_encoder = logits.float().cpu().numpy()
        scores = [np.broadcast_to(around.prior, rows.shape), rows, of_encoder]
        classes = labels.reshape(-1).cpu().numpy()
        weights, losses = fit_weights(scores, classes)
        gain = fit_weights([of_encoder], classes)[1] - losses
        if gain.mean() > gain.std() / len(gain) ** 0.5:
            self.weights.copy_(copied(torch.from_numpy(weights), self.weights.device))

    def forward(self, logits: Tensor, nodes: np.ndarray, around: PropagatedLabels) -> Tensor:
        """Logits of nodes, with the classes around them.

        Args:
            logits: [num_nodes, num_classes], of the encoder.
            nodes: int64 [num_nodes], dense ids of the graph of `around`.
        """
        of_prior, of_rows, of_encoder = self.weights
        rows, prior = (
            copied(torch.from_numpy(part).to(of_rows.dtype), of_rows.device)
            for part in (around.rows[nodes], around.prior)
        )
        return of_encoder.to(logits) * logits + (of_prior * prior + of_rows * rows).to(logits)
