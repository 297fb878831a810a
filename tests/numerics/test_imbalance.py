"""Weighted losses: the same model however a step is cut, and better recall."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import raygnn.train
from raygnn.outputs.html_page import show
from tests.small_runs import run_rank, small_bundle, small_config, trained_weights

BALANCED = {"type": "cross_entropy", "args": {"class_weights": "balanced"}}


@pytest.fixture(scope="module")
def bundle_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_bundle(tmp_path_factory.mktemp("graph"), rare=0.05).path)


def _run(ranks: Any, bundle_path: str, folder: Path, world_size: int, **changes: Any) -> Any:
    config = small_config(
        folder,
        scaling__num_workers=world_size,
        # Neither steps nor micro-batches divide the training seeds.
        training__global_batch_size=96,
        optimizer={"type": "SGD", "args": {"lr": 0.05}},
        **changes,
    )
    metrics = ranks.run(run_rank, world_size, config, bundle_path)[0]
    return trained_weights(config), metrics


def test_steps_are_the_same_however_they_are_cut(ranks, bundle_path, tmp_path):
    """96 seeds a step: one micro-batch, six of one worker, and six on two or three workers."""
    model = {"type": "GraphSAGE", "args": {"hidden_channels": 8}}  # dropout draws by micro-batch
    changes = {"losses": [BALANCED], "model": model, "sampling__fanouts": [-1, -1]}
    whole, metrics = _run(ranks, bundle_path, tmp_path / "one", 1, loader__batch_size=96, **changes)
    described = {name: metrics[name]["test"] for name in ("per_class", "confusion")}
    assert list(described["per_class"]) == described["confusion"]["classes"] == ["0", "1", "2"]
    for size in (1, 2, 3):
        weights, found = _run(ranks, bundle_path, tmp_path / str(size), size, **changes)
        for name, tensor in whole.items():
            torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5)
        assert {name: found[name]["test"] for name in described} == described
        error = metrics["calibration"]["test"]["error"]
        assert found["calibration"]["test"]["error"] == pytest.approx(error, abs=1e-4)


def _fraud(folder: Path, **changes: Any) -> dict[str, Any]:
    """Metrics of a run on 4,000 nodes, 2 % of which are fraud."""
    graph = {"num_nodes": 4000, "num_classes": 2, "rare": 0.02, "noise": 4.0}
    config = small_config(
        folder,
        data={
            "synthetic": {"type": "planted_partition", **graph},
            "splits": {"type": "hash", "fractions": [0.5, 0.2, 0.3]},
        },
        scaling__num_workers=0,
        loader={"batch_size": 256},
        model__args__hidden_channels=32,
        training={"max_epochs": 10},
        metrics=["accuracy", "balanced_accuracy", "average_precision"],
        **changes,
    )
    return raygnn.train.fit(config).metrics


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _fraud(tmp_path_factory.mktemp("fraud"))


def test_a_run_on_rare_fraud_says_what_to_set(plain):
    assert plain["warnings"].startswith("classes of under 10 % of the ")
    assert "'1' (" in plain["warnings"]
    assert "{type: cross_entropy, args: {class_weights: balanced}}" in plain["warnings"]


@pytest.mark.slow
def test_class_weights_find_more_fraud(plain, tmp_path):
    metrics = _fraud(tmp_path, losses=[BALANCED])
    before, now = (found["per_class"]["test"]["1"] for found in (plain, metrics))
    assert now["recall"] > before["recall"] + 0.1
    assert now["support"] == before["support"]
    assert metrics["test/balanced_accuracy"] > plain["test/balanced_accuracy"] + 0.05
    assert metrics["warnings"].startswith("classes of under 10 % of the ")
    assert "balanced" not in metrics["warnings"]


def test_figures_of_classes_are_those_of_the_report(bundle_path, tmp_path):
    config = small_config(tmp_path, scaling__num_workers=0)
    figures = run_rank(config, bundle_path)["per_class"]
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["per_class"] == figures
    page = ElementTree.fromstring((tmp_path / "run" / "report.html").read_text("utf-8"))
    rows = ["|".join(cell.text or "" for cell in row) for row in page.iter("tr")]
    start = rows.index("class|precision|recall|f1|support")
    shown = {row.partition("|")[0]: row.split("|")[1:] for row in rows[start + 1 : start + 4]}
    assert shown == {name: list(map(show, row.values())) for name, row in figures["test"].items()}
    supports = [int(row[-1]) for row in shown.values()]
    assert supports == sorted(supports)


def test_the_report_answers_in_order_and_shows_what_is_confused(bundle_path, tmp_path):
    metrics = run_rank(small_config(tmp_path, scaling__num_workers=0), bundle_path)
    counts = np.array(metrics["confusion"]["test"]["counts"])
    assert np.trace(counts) / counts.sum() == pytest.approx(metrics["test/accuracy"])
    page = ElementTree.fromstring((tmp_path / "run" / "report.html").read_text("utf-8"))
    assert [heading.text for heading in page.iter("h2")] == [
        "Results", "Errors", "Data", "Training", "Cost", "Use the model", "Config",
    ]  # fmt: skip
    (table,) = (t for t in page.iter("table") if t.get("class") == "confusion")
    shown = [[int(cell.text or "") for cell in row.iter("td")] for row in table.iter("tr")]
    assert shown[1:] == counts.tolist()
    (rows,) = (c for c in page.iter("tr") if c[0].text == "accuracy")
    error = metrics["standard_errors"]["test/accuracy"]
    assert float(str(rows[2].text).removeprefix("± ")) == pytest.approx(1.96 * error, rel=0.05)
    pairs = [[cell.text for cell in row] for row in page.iter("tr")]
    most = max(n for i, row in enumerate(counts.tolist()) for j, n in enumerate(row) if i != j)
    start = pairs.index(["actual", "predicted", "rows", "share of the class"])
    assert pairs[start + 1][2] == str(most)


def test_without_a_test_split_figures_are_of_validation(tmp_path):
    bundle = small_bundle(tmp_path)
    splits = {"type": "hash", "fractions": [0.6, 0.4, 0.0]}
    config = small_config(tmp_path, scaling__num_workers=0, data__splits=splits)
    metrics = run_rank(config, str(bundle.path))
    assert list(metrics["per_class"]) == ["val"]
    right = [row["recall"] * row["support"] for row in metrics["per_class"]["val"].values()]
    num_val = sum(row["support"] for row in metrics["per_class"]["val"].values())
    assert sum(right) / num_val == pytest.approx(metrics["val/accuracy"])
