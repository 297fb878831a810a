"""Baselines of labels are those of dummies of scikit-learn; the ladder of a run has them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from sklearn.dummy import DummyClassifier, DummyRegressor

from raygnn.loops.baselines import Baselines, label_baselines
from raygnn.metrics import (
    AUROC,
    R2,
    Accuracy,
    AveragePrecision,
    F1Macro,
    F1Micro,
    MeanAbsoluteError,
    NormalizedMeanAbsoluteError,
)
from raygnn.outputs.ladder import MODEL, find_baselines, find_ladder, verdict_sentence
from tests.unit.metrics.ranks import of_ranks_together

OF_CLASSES = (Accuracy, F1Macro, F1Micro, AUROC, AveragePrecision)


def _metrics(kinds: Any, num_outputs: int, problem: str) -> list[Any]:
    return [kind(num_outputs, problem) for kind in kinds]


@pytest.mark.parametrize("shares", [[0.98, 0.02], [0.2, 0.5, 0.3], [0.25] * 4])
def test_majority_is_the_dummy_of_scikit_learn(shares):
    rng = np.random.default_rng(0)
    train, test = (rng.choice(len(shares), size, p=shares) for size in (3000, 1000))
    found = label_baselines(
        "multi_class", len(shares), train, test, _metrics(OF_CLASSES, len(shares), "multi_class")
    ).metrics["majority"]
    dummy = DummyClassifier(strategy="most_frequent").fit(train[:, None], train)
    guess = dummy.predict(test[:, None])
    assert found["accuracy"] == reference.accuracy_score(test, guess)
    assert found["f1_macro"] == pytest.approx(
        reference.f1_score(test, guess, average="macro"), abs=1e-12
    )
    assert found["f1_micro"] == reference.accuracy_score(test, guess)
    assert found["auroc"] == 0.5
    classes = [1] if len(shares) == 2 else range(len(shares))
    prevalence = np.mean([(test == c).mean() for c in classes])
    assert found["average_precision"] == pytest.approx(prevalence, abs=1e-12)


def test_stratified_is_the_mean_of_many_draws():
    rng = np.random.default_rng(1)
    train, test = (rng.choice(3, size, p=[0.6, 0.3, 0.1]) for size in (500, 800))
    chosen = _metrics(OF_CLASSES, 3, "multi_class")
    found = label_baselines("multi_class", 3, train, test, chosen).metrics["stratified"]
    draws = []
    for seed in range(200):
        dummy = DummyClassifier(strategy="stratified", random_state=seed).fit(train[:, None], train)
        guess = dummy.predict(test[:, None])
        f1_macro = reference.f1_score(test, guess, average="macro")
        draws.append(((guess == test).mean(), f1_macro))
    accuracy, f1 = np.mean(draws, axis=0)
    assert found["accuracy"] == pytest.approx(accuracy, abs=0.004)
    assert found["f1_macro"] == pytest.approx(f1, abs=0.004)
    shares = np.bincount(train) / len(train)
    assert found["accuracy"] == pytest.approx(shares[test].mean(), abs=1e-12)


def test_each_label_of_several_has_its_own_majority():
    rng = np.random.default_rng(2)
    p = np.array([0.7, 0.2, 0.5])
    train, test = ((rng.random((size, 3)) < p).astype(np.int8) for size in (401, 300))
    chosen = _metrics((Accuracy, F1Macro, F1Micro), 3, "multi_label")
    found = label_baselines("multi_label", 3, train, test, chosen).metrics
    guess = np.tile(train.mean(0) > 0.5, (300, 1))
    assert found["majority"]["accuracy"] == reference.accuracy_score(test, guess)
    for average in ("macro", "micro"):
        expected = reference.f1_score(test, guess, average=average, zero_division=0)
        assert found["majority"][f"f1_{average}"] == pytest.approx(expected, abs=1e-12)
    drawn = rng.random((400, 300, 3)) < train.mean(0)
    assert found["stratified"]["accuracy"] == pytest.approx(
        (drawn == test).all(-1).mean(), abs=0.004
    )
    right = (drawn & test.astype(bool)).sum((1, 2))
    micro = 2 * right / (drawn.sum((1, 2)) + test.sum())
    assert found["stratified"]["f1_micro"] == pytest.approx(micro.mean(), abs=0.004)


@pytest.mark.parametrize("width", [1, 2])
def test_numbers_are_guessed_by_mean_and_median(width):
    rng = np.random.default_rng(3)
    train, test = (rng.lognormal(12, 1, (size, width)).astype(np.float32) for size in (300, 200))
    if width == 1:
        train, test = train[:, 0], test[:, 0]
    found = label_baselines(
        "regression", width, train, test, _metrics((MeanAbsoluteError, R2), width, "regression")
    ).metrics
    for name in ("mean", "median"):
        guess = DummyRegressor(strategy=name).fit(train, train).predict(test)
        assert found[name]["mae"] == pytest.approx(
            reference.mean_absolute_error(test, guess), rel=1e-6
        )
        assert found[name]["r2"] == pytest.approx(reference.r2_score(test, guess), abs=1e-6)


def test_metrics_of_others_are_left_out():
    class Own(Accuracy):
        name = "own"

    labels = np.array([0, 1, 1])
    found = label_baselines("multi_class", 2, labels, labels, [Own(2, "multi_class"), object()])
    assert found.metrics == {"majority": {}, "stratified": {}}


def test_noise_does_not_beat_the_baselines():
    """Of random predictions and labels, by each metric, in nearly all of many trials."""
    beaten: dict[str, int] = {}
    rng = np.random.default_rng(4)
    chosen = _metrics(OF_CLASSES, 3, "multi_class")
    for _ in range(200):
        train, test = rng.integers(0, 3, 600), rng.integers(0, 3, 400)
        found = label_baselines("multi_class", 3, train, test, chosen)
        logits, target = torch.from_numpy(rng.normal(size=(400, 3))), torch.from_numpy(test)
        model: dict[str, float] = {}
        for metric in chosen:
            if isinstance(metric, AUROC | AveragePrecision):
                model |= of_ranks_together(metric, [(logits, target)])
            else:
                model |= metric.compute(metric.update(logits, target))
        for name in model.keys() - found.not_beaten(model).keys():
            beaten[name] = beaten.get(name, 0) + 1
    assert all(count <= 12 for count in beaten.values()), beaten  # 6 %
    assert set(model) == {"accuracy", "f1_macro", "f1_micro", "auroc", "average_precision"}


def test_a_regression_of_noise_does_not_either():
    rng, num_beaten = np.random.default_rng(5), 0
    chosen = _metrics((MeanAbsoluteError, R2), 1, "regression")
    for _ in range(200):
        train, test = rng.normal(size=600), rng.normal(size=400)
        found = label_baselines("regression", 1, train, test, chosen)
        guess = torch.from_numpy(0.1 * rng.normal(size=(400, 1)))
        model: dict[str, float] = {}
        for metric in chosen:
            model |= metric.compute(metric.update(guess, torch.from_numpy(test)))
        num_beaten += len(found.not_beaten(model)) < 2
    assert num_beaten <= 12


def test_what_is_better_is_said_to_be():
    found = Baselines({"majority": {"accuracy": 0.6, "auroc": 0.5}}, 1000, (400,), (600,))
    assert found.not_beaten({"loss": 1.0, "accuracy": 0.66, "auroc": 0.56}) == {}
    assert found.not_beaten({"accuracy": 0.62, "auroc": 0.51}) == {
        "accuracy": "majority",
        "auroc": "majority",
    }
    numbers = Baselines({"mean": {"mae": 2.0, "r2": -0.01}, "median": {"mae": 1.9}}, 400)
    assert numbers.not_beaten({"mae": 1.85, "r2": 0.015}) == {"mae": "median", "r2": "mean"}
    assert numbers.not_beaten({"mae": 1.5, "r2": 0.3}) == {}
    assert found.best("mrr") is None


def test_guesses_of_rows_are_judged_beside_the_others():
    rng = np.random.default_rng(2)
    train, labels = rng.normal(size=(2, 200)) * 3
    near = labels[:, None] + 0.5
    kinds = _metrics((MeanAbsoluteError, NormalizedMeanAbsoluteError), 1, "regression")
    kinds[1].scale = float(train.std())
    found = label_baselines("regression", 1, train, labels, kinds, guesses={"near": near})
    assert set(found.metrics) == {"mean", "median", "near"}
    assert found.metrics["near"]["mae"] == pytest.approx(0.5)
    assert found.metrics["near"]["nmae"] == pytest.approx(0.5 / train.std())
    assert found.best("nmae")[0] == "near"


def _ladder_metrics(**values: float) -> dict[str, Any]:
    """Test metrics by predictor and metric: `model_auroc`."""
    found: dict[str, Any] = {"no_better_than_baseline": "", "standard_errors": {}}
    for name, value in values.items():
        guess, _, metric = name.partition("_")
        start = "" if guess == "model" else f"baseline/{guess}/"
        found[f"{start}test/{metric}"] = value
    return found


def test_more_is_stronger_but_for_errors():
    numbers = {"model_auroc": 0.7, "a_auroc": 0.9, "b_auroc": 0.6}
    metrics = _ladder_metrics(**numbers, model_mae=1.0, a_mae=3.0, b_mae=2)
    ladder = find_ladder(metrics, "val/auroc")
    assert [rung.name for rung in ladder.rungs] == ["b", MODEL, "a"]
    assert ladder.names == ["test/auroc", "test/mae"]
    ladder = find_ladder(metrics, "val/mae")
    assert [rung.name for rung in ladder.rungs] == ["a", "b", MODEL]
    assert [rung.name for rung in find_baselines(metrics, "test", "val/loss")] == ["b", "a"]


def test_a_model_without_baselines_has_no_ladder():
    assert not find_ladder(_ladder_metrics(model_auroc=0.7), "val/loss")
    assert not find_ladder({"no_better_than_baseline": ""}, "val/loss")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            0.02,
            "The model is better than every baseline by two standard errors: test/auroc 0.7500 "
            "(the strongest baseline, b: 0.7000).",
        ),
        (0.03, ""),  # not by two of them
        (None, ""),
    ],
)
def test_the_verdict_is_a_sentence(error, text):
    metrics = _ladder_metrics(model_auroc=0.75, a_auroc=0.5, b_auroc=0.7)
    metrics["standard_errors"] = {"test/auroc": error}
    assert verdict_sentence(metrics, find_ladder(metrics, "val/auroc")) == text


def test_the_verdict_names_a_baseline_that_is_not_beaten():
    metrics = _ladder_metrics(model_auroc=0.75, a_auroc=0.8)
    metrics["no_better_than_baseline"] = "test/auroc 0.7500 (a: 0.8000)"
    assert verdict_sentence(metrics, find_ladder(metrics, "val/auroc")) == (
        "The model is not better than a baseline by two standard errors: test/auroc 0.7500 "
        "(a: 0.8000)."
    )
