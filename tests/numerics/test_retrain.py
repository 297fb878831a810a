"""Retraining: splits move with the data, and the alias moves only to a better model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import raygnn.registry
import raygnn.train
from raygnn.inference.evaluate import JudgedOutputs
from raygnn.loops.baselines import precision_of
from raygnn.metrics import AUROC, Accuracy, F1Macro
from raygnn.outputs.model_registry import RegisteredModel, resolved
from raygnn.retrain import KEPT, main
from raygnn.runtime import launch as launching
from tests.small_runs import small_config

NUM_USERS = 40
_MANIFEST: dict[str, Any] = {
    "format": "raygnn/graph-v1",
    "node_types": {
        "user": {"files": "user.parquet", "id": "id", "features": {"x": "x"}},
        "item": {"files": "item.parquet", "id": "id", "features": {"x": "x"}},
    },
    "edge_types": [
        {
            "type": ["user", "buys", "item"],
            "files": "buys.parquet",
            **{"source": "user", "target": "item", "time": "day"},
        }
    ],
    "training_tables": {
        "asked": {
            "files": "asked.parquet",
            **{"node_type": "user", "node": "user", "time": "day", "labels": {"y": "y"}},
        }
    },
}


def _write(folder: Path, num_days: int) -> None:
    """Tables until a day; later ones contain the rows of earlier ones."""
    rng = np.random.default_rng(0)
    rate = rng.integers(0, 2, NUM_USERS)
    day = np.repeat(np.arange(200), 8)
    user = rng.integers(0, NUM_USERS, len(day))
    is_there = (rng.random(len(day)) < 0.2 + 0.8 * rate[user]) & (day <= num_days)
    asked_day = np.repeat(np.arange(10, num_days - 1, 10), NUM_USERS)
    asked = np.tile(np.arange(NUM_USERS), len(asked_day) // NUM_USERS)
    date = np.datetime64("2024-01-01", "us")
    tables = {
        "user": pd.DataFrame({"id": np.arange(NUM_USERS), "x": rng.random(NUM_USERS, np.float32)}),
        "item": pd.DataFrame({"id": np.arange(9), "x": np.linspace(0, 1, 9, dtype=np.float32)}),
        "buys": pd.DataFrame(
            {
                "user": user[is_there],
                "item": rng.integers(0, 9, len(day))[is_there],
                "day": date + day[is_there] * np.timedelta64(1, "D"),
            }
        ),
        "asked": pd.DataFrame(
            {"user": asked, "day": date + asked_day * np.timedelta64(1, "D"), "y": rate[asked]}
        ),
    }
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet")
    (folder / "graph.yaml").write_text(yaml.safe_dump(_MANIFEST))


@pytest.fixture
def champion(tmp_path: Path) -> RegisteredModel:
    _write(tmp_path / "store", 100)
    config = small_config(
        tmp_path / "runs",
        data={"uri": str(tmp_path / "store"), "cache_dir": str(tmp_path / "cache")},
        data__splits={"type": "temporal", "timestamps": ["2024-03-01", "2024-03-20"]},
        model="Hetero",
        metrics=["auroc"],
        scaling__num_workers=0,
        run__promotion={"num_errors": 0.0},
    )
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(config))
    raygnn.train.fit(config)
    raygnn.registry.add(f"{tmp_path}/orders", str(tmp_path / "runs" / "run"), alias="champion")
    return RegisteredModel(f"{tmp_path}/orders")


def _outputs(scores: np.ndarray, labels: np.ndarray) -> JudgedOutputs:
    both = torch.from_numpy(np.stack([-scores, scores], axis=1))
    metrics = [kind(2, "multi_class") for kind in (Accuracy, AUROC, F1Macro)]
    return JudgedOutputs(metrics, both, torch.from_numpy(labels), np.arange(len(labels)) // 2)


def _gain(metric: str, before: JudgedOutputs, after: JudgedOutputs) -> tuple[float, float]:
    rows = np.arange(len(before.targets))
    gain = after.value(metric, rows) - before.value(metric, rows)
    return gain, after.error_of_difference(metric, before)


@pytest.mark.parametrize("metric", ["accuracy", "auroc", "f1_macro"])
def test_a_gain_on_the_same_rows_is_recognised_and_noise_is_chance(metric):
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):  # equally good models that differ in some rows
        labels = rng.integers(0, 2, 600)
        shared = labels - 0.5 + rng.normal(0, 0.6, 600)
        models = (_outputs(shared + rng.normal(0, 0.2, 600), labels) for _ in range(2))
        found.append(_gain(metric, *models))
    gain, error = np.array(found).T
    assert error.mean() == pytest.approx(gain.std(), rel=0.3)
    assert 0.25 < (gain > 0).mean() < 0.75
    assert 0.05 < (gain > error).mean() < 0.3
    assert (gain > 2 * error).mean() < 0.1

    labels = rng.integers(0, 2, 2_000)
    shared = labels - 0.5 + rng.normal(0, 0.6, 2_000)
    worse = _outputs(shared + rng.normal(0, 0.2, 2_000), labels)
    gain_of_better, error_of_better = _gain(metric, worse, _outputs(shared, labels))
    assert gain_of_better > 2 * error_of_better
    unpaired = precision_of("multi_class", 2, labels, 1).standard_error(metric, 0.8)
    assert unpaired is not None
    assert gain_of_better < 2 * np.hypot(unpaired, unpaired)


def test_a_challenger_is_judged_on_newer_rows_and_promoted_if_it_is_better(
    champion, tmp_path, monkeypatch, capsys
):
    command = [champion.uri, str(tmp_path / "train.yaml"), "--run.name", "new"]
    first = champion.current("champion")
    _write(tmp_path / "store", 120)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:  # after the training
        patched.setattr(RegisteredModel, "add", killed)
        assert main([*command, "--run.promotion.min_gain", "1"]) == 130
    assert champion.current("champion") == first

    with monkeypatch.context() as patched:  # what was trained is not trained again
        patched.setattr(launching, "launch", killed)
        assert main([*command, "--run.promotion.min_gain", "1"]) == KEPT
        assert champion.current("champion") == first
        assert main([*command, "--run.promotion.min_gain", "-1"]) == 0
        second = champion.current("champion")
        assert main(command) == 0  # already
    assert champion.versions() == [first, second]
    config = yaml.safe_load((tmp_path / "runs" / "new" / "config.yaml").read_text())
    # By the 20 days that the edges have grown.
    moved = ["2024-03-21T00:00:00", "2024-04-09T00:00:00"]
    assert config["data"]["splits"]["timestamps"] == moved
    assert config["checkpoint"]["init_from"]["uri"].endswith(first)
    metrics = json.loads(Path(resolved(f"{champion.uri}@champion"), "metrics.json").read_text())
    assert metrics["times"]["test"][0] > metrics["times"]["val"][1]
    told = capsys.readouterr().out
    assert "test/auroc on the newest test rows: champion" in told
    assert "is not promoted: it gains" in told
