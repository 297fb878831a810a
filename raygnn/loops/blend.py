"""The rungs of a run, from a constant to the GNN, and the blend that validation chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from raygnn.data.history_spec import HistorySpec
from raygnn.metrics import metrics_of
from raygnn.metrics.standard_errors import influences, standard_error
from raygnn.models.label_propagation import fit_weights

#: Names of rungs, the simplest first.
CONSTANT, ENTITY_MEAN, LAST_LABEL = "constant", "entity_mean", "last_label"
TREES, GNN = "lightgbm", "gnn"
RUNGS = (CONSTANT, ENTITY_MEAN, LAST_LABEL, TREES, GNN)

_LEAST = 1e-6  # probability whose logarithm is the least score
_SIGNIFICANT = 2  # standard errors
_WEIGHTS = np.arange(0.05, 1, 0.05)  # of a rung that joins a blend


@dataclass(frozen=True)
class Share:
    """A rung's part in a blend, which adds weight * (scale * score + shift).

    Attributes:
        weight: weights of all shares add up to 1.
        scale, shift: calibrate the scores; the shift has a number for each class, or none.
    """

    weight: float
    scale: float = 1.0
    shift: tuple[float, ...] = ()

    def calibrated(self, scores: np.ndarray) -> np.ndarray:
        return self.scale * scores + (np.array(self.shift) if self.shift else 0.0)

    def then(self, next_: Share) -> Share:
        """This share, with its calibrated scores calibrated once more."""
        shift = next_.scale * np.array(self.shift or 0.0) + np.array(next_.shift or 0.0)
        shifts = tuple(shift.tolist()) if shift.ndim else ()
        return Share(self.weight, self.scale * next_.scale, shifts)

    def part(self, scores: np.ndarray) -> np.ndarray:
        """The rung's summand of the prediction, [num_rows, num_outputs]."""
        return self.weight * self.calibrated(scores)


@dataclass(frozen=True)
class Blend:
    """The prediction of a model of labels: one rung, or a weighted sum of several.

    A rung's scores are logits of classes, or numbers in the label's unit.

    Attributes:
        shares: by name of rung.
        constant: [num_outputs], the score of entities without earlier labels.
        history: columns that LightGBM reads, of a row's node or of both ends of an edge; empty
            without it.
    """

    shares: Mapping[str, Share]
    constant: tuple[float, ...]
    history: tuple[HistorySpec, ...] = ()

    @property
    def is_gnn(self) -> bool:
        """Whether the GNN alone predicts, with its scores as they are."""
        return self.shares == {GNN: Share(1.0)}

    @property
    def words(self) -> str:
        """`gnn 0.65 + lightgbm 0.35`, or the name of the only rung."""
        if len(self.shares) == 1:
            return next(iter(self.shares))
        return " + ".join(f"{name} {share.weight:.2f}" for name, share in self.shares.items())

    def mix(self, scores: Mapping[str, np.ndarray]) -> np.ndarray:
        """float64 [num_rows, num_outputs], the sum of what these rungs add to the prediction."""
        parts = [self.shares[name].part(rows.astype(np.float64)) for name, rows in scores.items()]
        return sum(parts[1:], parts[0])

    @property
    def uncalibrated(self) -> Blend:
        """The same weights of the rungs' scores as they are."""
        shares = {name: Share(share.weight) for name, share in self.shares.items()}
        return replace(self, shares=shares)


def log_scores(probabilities: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(probabilities, _LEAST))


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    clipped = np.clip(probabilities, _LEAST, 1 - _LEAST)
    return np.asarray(np.log(clipped) - np.log1p(-clipped))


@dataclass(frozen=True)
class Judge:
    """Losses of scores on validation rows.

    Attributes:
        labels: classes [num_rows], or labels or numbers [num_rows, num_outputs].
        problem: of classes and labels, the loss is the cross-entropy; of numbers, the absolute
            error.
        is_squared: the squared error in its place.
        groups: int64 [num_rows], the entity of each row.
        units: [num_outputs] in which errors of numbers are added up.
        weights: float64 [num_rows], or None.
    """

    labels: np.ndarray
    problem: str
    is_squared: bool
    groups: np.ndarray
    units: np.ndarray = field(default_factory=lambda: np.ones(1))
    weights: np.ndarray | None = None

    def mean(self, losses: np.ndarray) -> float:
        return float(np.average(losses, weights=self.weights))

    def is_better(self, gains: np.ndarray) -> bool:
        """Whether losses fall by more than a standard error."""
        return self.mean(gains) > standard_error(gains, self.groups, self.weights)

    def losses(self, scores: np.ndarray) -> np.ndarray:
        """float64 [num_rows]."""
        if self.problem == "regression":
            errors = (scores - self.labels.reshape(scores.shape)) / self.units
            return (np.square(errors) if self.is_squared else np.abs(errors)).mean(axis=1)
        if self.problem == "multi_label":
            known = self.labels.reshape(scores.shape)
            return np.asarray((np.logaddexp(0, scores) - known * scores).mean(axis=1))
        logits = scores - scores.max(axis=1, keepdims=True)
        of_label = logits[np.arange(len(logits)), self.labels.reshape(-1)]
        return np.asarray(np.log(np.exp(logits).sum(axis=1)) - of_label)

    def calibration(self, scores: np.ndarray, prior: np.ndarray) -> Share:
        """Scale and shift of logits that predict the labels best; numbers stay as they are."""
        if self.problem == "regression":
            return Share(1.0)
        if self.problem == "multi_label":  # each label has two classes
            logits = [np.broadcast_to(prior, scores.shape), scores]
            both = [np.stack([np.zeros(rows.size), rows.reshape(-1)], axis=1) for rows in logits]
            weights = None if self.weights is None else np.repeat(self.weights, scores.shape[1])
            (of_prior, scale), _ = fit_weights(both, self.labels.reshape(-1), weights)
            return Share(1.0, float(scale), tuple((of_prior * prior).tolist()))
        # Two classes may shift freely; more by the shares of all classes in training.
        shift = np.array([0.0, 1.0]) if scores.shape[1] == 2 else prior
        both = [np.broadcast_to(shift, scores.shape), scores]
        (of_shift, scale), _ = fit_weights(both, self.labels.reshape(-1), self.weights)
        return Share(1.0, float(scale), tuple((of_shift * shift).tolist()))


def fit_blend(scores: Mapping[str, np.ndarray], judge: Judge, constant: np.ndarray) -> Blend:
    """Chooses the best rung, then adds others while each lowers the loss by a standard error,
    with the weight of least loss among those that do.

    LightGBM, the simpler of the two learned rungs, then gets as much weight as raises the loss by
    at most a standard error (the one-standard-error rule of Breiman et al., "Classification and
    Regression Trees", 1984). A rung alone, and the sum of several, are calibrated if that lowers
    the loss by a standard error.

    Args:
        scores: float [num_rows, num_outputs] by rung, of the validation rows. Of equally good
            rungs the first is chosen.
        constant: [num_outputs], the score of entities without earlier labels.
    """
    shares = {name: judge.calibration(rows, constant) for name, rows in scores.items()}
    calibrated = {name: share.calibrated(scores[name]) for name, share in shares.items()}
    losses = {name: judge.losses(rows) for name, rows in calibrated.items()}
    best = min(losses, key=lambda name: judge.mean(losses[name]))
    weights, mixed, current = {best: 1.0}, calibrated[best], losses[best]
    while others := [name for name in scores if name not in weights]:
        tried = {
            (name, weight): judge.losses((1 - weight) * mixed + weight * calibrated[name])
            for name in others
            for weight in _WEIGHTS
        }
        gains = {key: current - losses for key, losses in tried.items()}
        better = [key for key, gain in gains.items() if judge.is_better(gain)]
        if not better:
            break
        name, weight = added = min(better, key=lambda key: judge.mean(tried[key]))
        weights = {each: (1 - weight) * w for each, w in weights.items()} | {name: float(weight)}
        mixed, current = (1 - weight) * mixed + weight * calibrated[name], tried[added]
    if GNN in weights and TREES in scores:
        of_trees = weights.get(TREES, 0.0)
        more = [weight for weight in _WEIGHTS[::-1] if weight > of_trees > 0]
        for total in (1.0, *more):
            left = (1 - total) / (1 - of_trees)
            simpler = left * mixed + (1 - left) * calibrated[TREES]
            losses_of_simpler = judge.losses(simpler)
            if not judge.is_better(losses_of_simpler - current):
                weights = {name: left * weight for name, weight in weights.items() if left > 0}
                weights[TREES] = float(total)
                mixed, current = simpler, losses_of_simpler
                break
    if len(weights) == 1:
        (best,) = weights
        is_better = judge.is_better(judge.losses(scores[best]) - current)
        return Blend({best: shares[best] if is_better else Share(1.0)}, tuple(constant.tolist()))
    chosen = {
        name: replace(shares[name], weight=weights[name])
        for name in sorted(weights, key=lambda name: -weights[name])
    }
    # A sum of calibrated logits is too cautious where the errors of rungs differ.
    last = judge.calibration(mixed, constant)
    if judge.is_better(current - judge.losses(last.calibrated(mixed))):
        chosen = {name: share.then(last) for name, share in chosen.items()}
    return Blend(chosen, tuple(constant.tolist()))


@dataclass(frozen=True)
class Standing:
    """A rung beside the model, by one metric on one split.

    Attributes:
        error: standard error of the value; None if unknown.
        difference: the value minus the model's, on the same rows.
        error_of_difference: its standard error; None if unknown.
    """

    value: float
    error: float | None
    difference: float
    error_of_difference: float | None


#: Standings by metric and rung; `MODEL` is the rung of the model itself.
Standings = dict[str, dict[str, Standing]]
MODEL = "model"


def compare_rungs(
    metrics: Sequence[Any],
    predictions: Mapping[str, np.ndarray],
    targets: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray | None = None,
) -> Standings:
    """Compares rungs with the model on the same rows.

    Args:
        metrics: raygnn's own.
        predictions: by rung, and the model's; [num_rows, num_outputs], as for the metrics.
        groups: int64 [num_rows], the entity of each row.
        weights: float64 [num_rows], or None.
    """
    standings: Standings = {}
    labels = torch.from_numpy(np.ascontiguousarray(targets))
    weight = None if weights is None else torch.from_numpy(weights)
    for metric in metrics:
        values, of_rows = {}, {}
        for name, rows in predictions.items():
            of_rung = metrics_of([metric], torch.from_numpy(rows), labels, weight)
            values[name] = of_rung.get(metric.name)
            of_rows[name] = influences(metric, rows, targets, weights)
        own, own_rows = values[MODEL], of_rows[MODEL]
        for name, value in values.items():
            if value is None or own is None:
                continue
            influence, both = of_rows[name], None
            if influence is not None and own_rows is not None:
                both = standard_error(influence - own_rows, groups, weights)
            error = None
            if influence is not None:
                error = standard_error(influence, groups, weights)
            found = Standing(value, error, value - own, both)
            standings.setdefault(metric.name, {})[name] = found
    return standings


def verdict(model: str, name: str, standings: Mapping[str, Standing], *, is_error: bool) -> str:
    """The model among the rungs in one sentence, by one metric, the strongest rung first.

    Args:
        model: what predicts, as `Blend.words`.
        is_error: less is better.
    """
    sign = -1 if is_error else 1
    own = standings[MODEL]
    others = [rung for rung in standings if rung not in (MODEL, model)]
    others.sort(key=lambda rung: -sign * standings[rung].value)
    above = [
        _beside(rung, standings[rung]) for rung in others if sign * standings[rung].difference > 0
    ]
    below = [_beside(rung, standings[rung]) for rung in others][len(above) :]
    parts = [f"is worse than {', '.join(above)}"] if above else []
    parts += [f"beats {', '.join(below)}"] if below else []
    return f"{name}: {model} {own.value:.4f} {' and '.join(parts)}".strip()


def _beside(rung: str, standing: Standing) -> str:
    error = standing.error_of_difference
    is_noise = error is not None and abs(standing.difference) <= _SIGNIFICANT * error
    return f"{rung} {standing.value:.4f}{' (not significant)' if is_noise else ''}"
