"""A run whose config, graph and every output lie in a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load

import raygnn.train
from raygnn.data.filesystem import join, open_fs, read_text, write_text
from raygnn.data.tables.graph_tables import write_tables
from raygnn.outputs.checkpoints.store import CheckpointStore
from raygnn.prepare.synthetic import synthetic_tables
from tests.small_runs import small_config


@pytest.fixture
def config_uri(gcs_bucket: str) -> str:
    tables = synthetic_tables("planted_partition", num_nodes=120, num_classes=3, num_features=4)
    graph = write_tables(tables, join(gcs_bucket, "graph"), overwrite=True)
    config = small_config(join(gcs_bucket, "runs"), scaling__num_workers=0, data__uri=graph)
    config["loggers"] = ["tensorboard"]
    config["run"]["model_uri"] = join(gcs_bucket, "models", "mine")
    config["run"]["logs_uri"] = join(gcs_bucket, "logs", "mine")
    write_text(join(gcs_bucket, "config.yaml"), yaml.safe_dump(config))
    return join(gcs_bucket, "config.yaml")


def _names(uri: str) -> set[str]:
    fs, path = open_fs(uri)
    fs.invalidate_cache()
    return {name.removeprefix(path).lstrip("/") for name in fs.find(path)}


def test_every_output_lands_in_the_bucket(config_uri, gcs_bucket, tmp_path: Path, capsys):
    assert raygnn.train.main([config_uri]) == 0
    run = join(gcs_bucket, "runs", "run")
    assert json.loads(read_text(join(run, "metrics.json")))["epoch"] == 2
    assert len(read_text(join(run, "history.jsonl")).splitlines()) == 2
    assert "val/accuracy" in read_text(join(run, "report.html"))
    assert {"config.yaml", "model.safetensors"} <= _names(join(gcs_bucket, "models", "mine"))
    fs, path = open_fs(join(gcs_bucket, "models", "mine", "model.safetensors"))
    assert load(fs.cat_file(path))
    events = _names(join(gcs_bucket, "logs", "mine"))
    assert any(name.startswith("events.out.tfevents") for name in events)
    store = CheckpointStore(join(run, "checkpoints"))
    assert store.newest_valid(store.names())[0] == store.pointer("last")
    # A second start finds the run finished; with overwrite it starts anew.
    assert raygnn.train.main([config_uri]) == 2
    assert "has finished" in capsys.readouterr().err
    assert raygnn.train.main([config_uri, "--run.overwrite", "true"]) == 0


def test_a_run_in_a_bucket_goes_on(config_uri, gcs_bucket, capsys):
    name = ["--run.name", "resumed"]
    assert raygnn.train.main([config_uri, *name]) == 0
    folder = join(gcs_bucket, "runs", "resumed")
    state = json.loads(read_text(join(folder, "run.json")))
    write_text(join(folder, "run.json"), json.dumps({**state, "status": "running"}))
    assert raygnn.train.main([config_uri, *name]) == 0
    assert "resumed from step-" in capsys.readouterr().out
