"""Rungs and their blend, chosen on validation rows."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from raygnn.data.checksums import type_adapter
from raygnn.loops.blend import (
    CONSTANT,
    ENTITY_MEAN,
    GNN,
    MODEL,
    TREES,
    Blend,
    Judge,
    Share,
    Standing,
    fit_blend,
    verdict,
)

NUM = 2000


def _judge(labels: np.ndarray, problem: str = "regression", *, is_squared: bool = False) -> Judge:
    return Judge(labels, problem, is_squared, np.arange(len(labels)))


def test_rungs_with_independent_errors_are_blended() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(NUM, 1))
    scores = {
        CONSTANT: np.zeros((NUM, 1)),
        TREES: labels + rng.normal(size=(NUM, 1)),
        GNN: labels + rng.normal(size=(NUM, 1)),
    }
    for is_squared in (False, True):
        judge = _judge(labels, is_squared=is_squared)
        blend = fit_blend(scores, judge, np.zeros(1))
        assert set(blend.shares) >= {TREES, GNN}
        assert sum(share.weight for share in blend.shares.values()) == pytest.approx(1)
        losses = {name: judge.losses(rows).mean() for name, rows in scores.items()}
        mixed = blend.mix({name: scores[name] for name in blend.shares})
        assert judge.losses(mixed).mean() < 0.9 * min(losses.values())


def test_a_blend_that_gains_no_standard_error_is_not_taken() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(NUM, 1))
    near = labels + 0.01 * rng.normal(size=(NUM, 1))
    scores = {CONSTANT: np.zeros((NUM, 1)), TREES: near, GNN: near + rng.normal(size=(NUM, 1))}
    blend = fit_blend(scores, _judge(labels), np.zeros(1))
    assert blend.shares == {TREES: Share(1.0)}
    assert not blend.is_gnn
    blend = fit_blend({**scores, GNN: labels}, _judge(labels), np.zeros(1))
    assert blend.is_gnn


@pytest.mark.parametrize(("noise", "share"), [(1.0, 1.0), (0.93, 1.0), (0.5, 0.0)])
def test_lightgbm_predicts_alone_where_the_gnn_gains_no_standard_error(
    noise: float, share: float
) -> None:
    """The errors of both are those of LightGBM, so that blending gains nothing."""
    rng = np.random.default_rng(0)
    labels, errors = rng.normal(size=(2, 60, 1))
    scores = {TREES: labels + errors * rng.uniform(0.5, 1.5, errors.shape)}
    scores[GNN] = labels + noise * (scores[TREES] - labels)
    scores[GNN][::7] += errors[::7]
    blend = fit_blend(scores, _judge(labels), np.zeros(1))
    assert blend.shares == {TREES if share else GNN: Share(1.0)}


def test_lightgbm_gets_the_largest_weight_within_a_standard_error() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=(100, 1))
    scores = {name: labels + rng.normal(size=(100, 1)) for name in (TREES, GNN)}
    judge = _judge(labels)
    shares = fit_blend(scores, judge, np.zeros(1)).shares
    assert 0.5 < shares[TREES].weight < 1

    def losses(weight: float) -> np.ndarray:
        return judge.losses(weight * scores[TREES] + (1 - weight) * scores[GNN])

    best = min((losses(weight) for weight in np.arange(0, 1, 0.05)), key=judge.mean)
    assert not judge.is_better(losses(shares[TREES].weight) - best)
    assert judge.is_better(losses(shares[TREES].weight + 0.05) - best)


def test_of_equal_rungs_the_simplest_is_chosen() -> None:
    labels = np.random.default_rng(0).normal(size=(NUM, 1))
    same = np.zeros((NUM, 1))
    blend = fit_blend({CONSTANT: same, TREES: same, GNN: same}, _judge(labels), np.zeros(1))
    assert set(blend.shares) == {CONSTANT}


def test_classes_are_judged_by_what_scores_order_not_by_their_scale() -> None:
    """Scores that are much too small lose nothing against an entity's mean that orders worse."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=NUM)
    labels = (truth + 0.5 * rng.normal(size=NUM) > 0.5).astype(np.int64)
    small = np.stack([np.zeros(NUM), 0.01 * truth], axis=1)
    worse = np.stack([np.zeros(NUM), truth + rng.normal(size=NUM)], axis=1)
    prior = np.log(np.bincount(labels) / NUM)
    judge = _judge(labels, "multi_class")
    blend = fit_blend({ENTITY_MEAN: worse, GNN: small}, judge, prior)
    assert set(blend.shares) == {GNN}
    assert judge.losses(blend.mix({GNN: small})).mean() < 0.8 * judge.losses(small).mean()


def _losses_before_and_after(labels: np.ndarray, scores: dict[str, np.ndarray]) -> list[float]:
    judge = _judge(labels, "multi_class")
    blend = fit_blend(scores, judge, np.log(np.bincount(labels) / len(labels)))
    assert len(blend.shares) == 2
    chosen = {name: scores[name] for name in blend.shares}
    return [judge.losses(each.mix(chosen)).mean() for each in (blend.uncalibrated, blend)]


def test_a_sum_of_calibrated_logits_is_calibrated_again() -> None:
    """Each of two rungs knows one half of the logit, so that their mean is too cautious."""
    rng = np.random.default_rng(0)
    halves = 2 * rng.normal(size=(2, NUM))
    labels = (rng.random(NUM) < 1 / (1 + np.exp(-halves.sum(axis=0)))).astype(np.int64)
    scores = {
        name: np.stack([np.zeros(NUM), half], axis=1)
        for name, half in zip((TREES, GNN), halves, strict=True)
    }
    before, after = _losses_before_and_after(labels, scores)
    true = np.stack([np.zeros(NUM), halves.sum(axis=0)], axis=1)
    least = _judge(labels, "multi_class").losses(true).mean()
    assert after < least + 0.01 < before


def test_calibration_keeps_the_order_of_two_classes() -> None:
    share = Share(0.5, 2.0, (0.0, -1.0)).then(Share(1.0, 1.5, (0.0, 0.25)))
    assert share == Share(0.5, 3.0, (0.0, -1.25))
    assert Share(1.0).then(Share(1.0, 2.0)) == Share(1.0, 2.0)
    scores = np.random.default_rng(0).normal(size=(50, 2))
    margins = [np.diff(each, axis=1)[:, 0] for each in (scores, share.calibrated(scores))]
    assert (np.argsort(margins[0]) == np.argsort(margins[1])).all()


def test_rows_of_one_entity_count_once() -> None:
    """A gain that rests on one entity with many rows is no reason for a blend."""
    groups = np.repeat(np.arange(10), 100)
    labels = np.zeros((1000, 1))
    scores = {TREES: np.ones((1000, 1)), GNN: np.where(groups == 0, -1.1, 1.02)[:, None]}
    alone = Judge(labels, "regression", False, np.arange(1000))
    assert len(fit_blend(scores, alone, np.zeros(1)).shares) == 2
    together = Judge(labels, "regression", False, groups)
    assert len(fit_blend(scores, together, np.zeros(1)).shares) == 1


def test_a_blend_is_read_back_from_json() -> None:
    blend = Blend({GNN: Share(0.7, 1.5, (0.0, -0.25)), TREES: Share(0.3)}, (-0.1, -2.3))
    assert type_adapter(Blend).validate_python(asdict(blend)) == blend


def test_the_verdict_names_rungs_in_order_of_strength() -> None:
    standings = {
        GNN: Standing(0.738, 0.02, -0.02, 0.005),
        TREES: Standing(0.754, 0.02, -0.004, 0.003),
        MODEL: Standing(0.758, 0.02, 0.0, 0.0),
    }
    text = verdict("blend", "test/auroc", standings, is_error=False)
    assert text == "test/auroc: blend 0.7580 beats lightgbm 0.7540 (not significant), gnn 0.7380"
    text = verdict("blend", "test/mae", standings, is_error=True)
    assert text == (
        "test/mae: blend 0.7580 is worse than gnn 0.7380, lightgbm 0.7540 (not significant)"
    )
