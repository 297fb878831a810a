"""Baselines and the model by strength, and the sentence about them."""

from __future__ import annotations

from typing import Any

import pytest

from raygnn.outputs.ladder import MODEL, find_baselines, find_ladder, verdict_sentence


def _metrics(**values: float) -> dict[str, Any]:
    """Test metrics by predictor and metric: `model_auroc`."""
    found: dict[str, Any] = {"no_better_than_baseline": "", "standard_errors": {}}
    for name, value in values.items():
        guess, _, metric = name.partition("_")
        start = "" if guess == "model" else f"baseline/{guess}/"
        found[f"{start}test/{metric}"] = value
    return found


def test_more_is_stronger_but_for_errors():
    metrics = _metrics(model_auroc=0.7, a_auroc=0.9, b_auroc=0.6, model_mae=1.0, a_mae=3.0, b_mae=2)
    ladder = find_ladder(metrics, "val/auroc")
    assert [rung.name for rung in ladder.rungs] == ["b", MODEL, "a"]
    assert ladder.names == ["test/auroc", "test/mae"]
    ladder = find_ladder(metrics, "val/mae")
    assert [rung.name for rung in ladder.rungs] == ["a", "b", MODEL]
    assert [rung.name for rung in find_baselines(metrics, "test", "val/loss")] == ["b", "a"]


def test_a_model_without_baselines_has_no_ladder():
    assert not find_ladder(_metrics(model_auroc=0.7), "val/loss")
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
    metrics = _metrics(model_auroc=0.75, a_auroc=0.5, b_auroc=0.7)
    metrics["standard_errors"] = {"test/auroc": error}
    assert verdict_sentence(metrics, find_ladder(metrics, "val/auroc")) == text


def test_the_verdict_names_a_baseline_that_is_not_beaten():
    metrics = _metrics(model_auroc=0.75, a_auroc=0.8)
    metrics["no_better_than_baseline"] = "test/auroc 0.7500 (a: 0.8000)"
    assert verdict_sentence(metrics, find_ladder(metrics, "val/auroc")) == (
        "The model is not better than a baseline by two standard errors: test/auroc 0.7500 "
        "(a: 0.8000)."
    )
