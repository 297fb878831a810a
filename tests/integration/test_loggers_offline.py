"""The real packages of the extras, without a network; skipped where they are not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import raygnn
import raygnn.registry
from tests.errors import raises
from tests.small_runs import run_rank, small_config

pytestmark = pytest.mark.filterwarnings("default")  # theirs


def _run(folder: Path, bundle_path: str, logger: dict[str, Any]) -> dict[str, Any]:
    config = small_config(
        folder,
        scaling__num_workers=0,
        training={"max_steps": 6, "log_every": {"steps": 1}, "validate_every": {"steps": 3}},
        loggers=[logger],
    )
    return run_rank(config, bundle_path)


def test_wandb_writes_an_offline_run(tmp_path, small_bundle_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs raygnn[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    _run(tmp_path, small_bundle_path, {"type": "wandb", "args": {"project": "graphs"}})
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    content = file.read_bytes()
    assert b"val/accuracy" in content
    assert b"fanouts" in content


def test_mlflow_writes_to_a_file_store(small_bundle_path, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs raygnn[mlflow]")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    logger = {"type": "mlflow", "args": {"experiment": "graphs", "tracking_uri": uri}}
    metrics = _run(tmp_path, small_bundle_path, logger)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("graphs")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["test/accuracy"] == pytest.approx(metrics["test/accuracy"])
    assert run.data.params["sampling.fanouts"] == "[4, 3]"
    steps = [m.step for m in client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == [1, 2, 3, 4, 5, 6]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("RAYGNN_CACHE_DIR", str(tmp_path / "cache"))
    trained = raygnn.load(tmp_path / "run")
    for number in ("1", "2"):
        added = raygnn.registry.add("models:/small", str(tmp_path / "run"), "champion")
        assert added == number
    for name in ("models:/small@champion", "models:/small/1"):
        loaded = raygnn.load(name)
        assert loaded.spec == trained.spec
        own, found = (model.module.state_dict() for model in (trained, loaded))
        assert all(torch.equal(own[key], found[key]) for key in own)
    assert raygnn.registry.add(f"{tmp_path}/small", "models:/small/2")
    with raises("registry-mlflow", "models:/small@other"):
        raygnn.load("models:/small@other")
