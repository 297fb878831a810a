"""Every way to set up a run that the config offers trains, validates and tests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import raygnn.train
from raygnn.data.splits import hash_split
from raygnn.data.tables.graph_tables import GraphTables, edge_rows, node_rows, write_tables
from raygnn.documents import parse_yaml
from raygnn.errors import TrainingError
from tests import user_code
from tests.errors import raises
from tests.small_runs import small_config
from tests.tiers import slow


def _fit(folder: Path, graph: str | None, **changes):
    config = small_config(folder, scaling__num_workers=0, **changes)
    if graph is not None:
        config["data"] = {**config.get("data", {}), "uri": graph}
    return raygnn.train.fit(config, allow_modules=["tests"])


#: Of `make test`: one of each section of a config.
USUAL = ("transformer", "exact evaluation", "autocast", "plateau", "named outputs", "limits")
VARIANTS: dict[str, dict[str, Any]] = parse_yaml(
    """
gat: {model: {type: GAT, args: {hidden_channels: 8, num_heads: 2}}}
gatv2: {model: {type: GATv2, args: {hidden_channels: 8, num_heads: 2}}}
gin: {model: {type: GIN, args: {hidden_channels: 8}}}
transformer: {model: {type: Transformer, args: {hidden_channels: 8, num_heads: 2}}}
mlp: {model: {type: MLP, args: {hidden_channels: 8}}}
jump, norms:
  model__args: {hidden_channels: 8, jump: lstm, norm: layer, normalize_output: true}
embedding width with a head: {model: {type: GCN, args: {hidden_channels: 8, out_channels: 5}}}
exact evaluation: {training__eval: exact}
fanouts by edge type: {sampling__fanouts: {node__to__node: [3, 2]}}
autocast: {training__precision: bf16-mixed, deterministic: false}
bfloat16: {training__precision: bf16-true, deterministic: false}
float16 with a scaler: {training__precision: fp16-mixed, deterministic: false}
formats one by one:
  training__precision: {param: bf16, buffer: bf16, input: fp16}
  model__args: {hidden_channels: 8, norm: batch}
  deterministic: false
a plain PyG model in bfloat16:
  {model: {type: tests.user_code.PlainPyG}, training__precision: bf16-true, deterministic: false}
clipping: {training__clip_grad_norm: 0.5}
accumulation: {training__accumulate_grad_batches: 3}
plateau: {lr_scheduler: {type: ReduceLROnPlateau, args: {patience: 0}, monitor: val/loss}}
schedule by epoch: {lr_scheduler: {type: StepLR, args: {step_size: 1}, interval: epoch}}
weighted loss terms: {losses: [{type: cross_entropy}, {type: cross_entropy, weight: 0.5}]}
named outputs:
  model: {type: tests.user_code.TwoHeads}
  losses: [{type: cross_entropy, on: main}, {type: cross_entropy, on: extra, weight: 0.1}]
a plain PyG model: {model: {type: tests.user_code.PlainPyG, args: {width: 4}}}
several batches in flight: {loader__num_threads: 3, loader__prefetch_batches: 6}
limits: {training__max_epochs: null, training__max_samples: 100, training__num_val_batches: 1,
  training__num_test_batches: 1, training__validate_at_start: true}
hash split: {data__splits: {type: hash, fractions: [0.5, 0.25, 0.25]}}
few per class: {data__splits: {type: per_class, train: 10, val: 10}}
half-precision features: {data__feature_dtype: float16}
"""
).value


def test_a_metric_of_torchmetrics_is_reported(tmp_path, small_tables):
    kappa = "torchmetrics.classification.MulticlassCohenKappa"
    result = _fit(tmp_path, small_tables, metrics=[{"type": kappa, "args": {"num_classes": 3}}])
    assert -1 <= result.metrics["test/multiclass_cohen_kappa"] <= 1


@pytest.mark.parametrize("name", [*USUAL, *slow(*(name for name in VARIANTS if name not in USUAL))])
def test_variant(tmp_path, small_tables, name):
    result = _fit(tmp_path, small_tables, **VARIANTS[name])
    values = {k: v for k, v in result.metrics.items() if k.startswith("test/")}
    assert values
    assert all(math.isfinite(value) for value in values.values())
    assert len(result.metrics_dataframe) >= 1
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert saved["run"]["name"] == "run"


def test_without_checkpoints_none_is_written(tmp_path, small_tables):
    _fit(tmp_path, small_tables, checkpoint__policy="none")
    assert not list(tmp_path.glob("run/checkpoints/*/"))


def test_user_code_takes_part(tmp_path, small_tables):
    user_code.CALLS.clear()
    _fit(
        tmp_path,
        small_tables,
        init_env="tests.user_code.prepare_process",
        task={"type": "tests.user_code.CountingTask"},
        model={"type": "tests.user_code.StatefulModel"},
        callbacks=[{"on_epoch_end": "tests.user_code.note_epoch"}],
    )
    assert user_code.CALLS[0] == "init_env"
    assert "task.training_step" in user_code.CALLS
    assert [c for c in user_code.CALLS if c.startswith("epoch")] == ["epoch 0", "epoch 1"]
    assert user_code.CALLS.count("model.on_train_start") == 1


def test_a_factory_gives_the_graph(tmp_path):
    data = {
        "type": "tests.user_code.my_graph",
        "args": {"num_nodes": 120},
        "splits": {"type": "hash", "fractions": [0.6, 0.2, 0.2]},
    }
    assert _fit(tmp_path, None, data=data).metrics["test/accuracy"] >= 0


def test_without_validation_the_training_loss_is_watched(tmp_path, small_tables):
    splits = {"type": "per_class", "train": 20, "val": 0}
    early = {"monitor": "val/loss", "patience": 1}
    result = _fit(tmp_path, small_tables, data__splits=splits, early_stopping=early)
    assert "val/loss" not in result.metrics_dataframe
    assert result.metrics["best_step"] > 0


def _labelled_graph(folder: Path, labels: np.ndarray) -> str:
    rng = np.random.default_rng(0)
    num_nodes = len(labels)
    features = rng.normal(size=(num_nodes, 4)).astype(np.float32)
    tables = GraphTables(
        nodes={"n": node_rows(np.arange(num_nodes), {"x": features}, {"y": labels})},
        edges={("n", "to", "n"): edge_rows(*rng.integers(0, num_nodes, (2, 300)))},
    )
    return write_tables(tables, str(folder / "tables"))


def test_regression_and_multi_label(tmp_path):
    rng = np.random.default_rng(1)
    split = {"type": "hash", "fractions": [0.6, 0.2, 0.2]}
    # So far from zero that sums of squares would lose the digits of R2.
    values = rng.integers(0, 9, 80).astype(np.float32) + 2**22
    uri = _labelled_graph(tmp_path / "r", values)
    result = _fit(tmp_path / "a", uri, metrics=[], data__splits=split)
    assert {"test/mae", "test/r2"} <= set(result.metrics)
    codes = hash_split(np.arange(80), (0.6, 0.2, 0.2), 0)
    train, test = (values[codes == code].astype(np.float64) for code in (1, 3))
    r2 = 1 - np.square(test - train.mean()).sum() / np.square(test - test.mean()).sum()
    assert result.metrics["baseline/mean/test/r2"] == pytest.approx(r2, abs=1e-8)
    uri = _labelled_graph(tmp_path / "m", rng.integers(0, 2, (80, 3)))
    result = _fit(tmp_path / "b", uri, metrics=[], data__splits=split)
    assert {"test/f1_micro", "test/f1_macro"} <= set(result.metrics)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, small_tables):
    with raises("training-loss-not-finite", 1):
        _fit(tmp_path, small_tables, model={"type": "tests.user_code.Exploding"})


def test_a_refused_config_does_not_overwrite_the_run(tmp_path, small_tables):
    own = {"model": {"type": "tests.user_code.PlainPyG"}, "run__overwrite": True}
    (tmp_path / "run").mkdir()
    for name in ("run.json", "metrics.json"):
        (tmp_path / "run" / name).write_text("{}")
    with raises("model-not-layerwise"):
        _fit(tmp_path, small_tables, training__eval="exact", **own)
    assert (tmp_path / "run" / "metrics.json").exists()


def test_an_output_must_be_named_right(tmp_path, small_tables):
    wrong = [{"type": "cross_entropy", "on": "nothing"}]
    with raises("loss-on-unknown", "nothing", "'extra', 'main'"):
        _fit(tmp_path, small_tables, model={"type": "tests.user_code.TwoHeads"}, losses=wrong)


def test_early_stopping_stops_and_the_best_weights_are_tested(tmp_path, small_tables):
    result = _fit(
        tmp_path,
        small_tables,
        training__max_epochs=60,
        optimizer={"type": "Adam", "args": {"lr": 0.05}},
        early_stopping={"monitor": "val/loss", "patience": 2},
    )
    history = result.metrics_dataframe
    assert len(history) < 60
    best = history["val/loss"].idxmin()
    assert best == len(history) - 3
    assert result.metrics["best_step"] == history["step"][best]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["stop_reason"].startswith("early stopping")


def test_no_trainable_parameter_is_refused(tmp_path, small_tables):
    with raises("model-no-parameters"):
        _fit(tmp_path, small_tables, model={"type": "torch_geometric.nn.LGConv"})


@pytest.mark.parametrize("fails", [False, True])
def test_no_secret_reaches_the_files_and_lines_of_a_run(small_tables, tmp_path, capfd, fails):
    secret = "hunter2-very-secret"
    settings = {
        "clientSecret": secret,
        "headers": {"Authorization": f"Bearer {secret}"},
        "argv": ["curl", "--password", secret],
        "env": [{"name": "API_KEY", "value": secret}],
        "url": f"https://u:{secret}@h/x?pwd={secret}",
        "store": f"AccountName=a;AccountKey={secret};Suffix=b",
    }
    callback = {"type": "tests.user_code.CallsHome", "args": {"fails": fails, **settings}}
    changes = {"callbacks": [callback], "loggers": ["tensorboard"]}
    if fails:
        with pytest.raises(TrainingError) as caught:
            _fit(tmp_path, small_tables, **changes)
        assert secret not in str(caught.value)
    else:
        _fit(tmp_path, small_tables, **changes)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    names = {"config.yaml", *(() if fails else ("report.html",))}
    assert names <= {path.name for path in written}
    assert [path.name for path in written if secret.encode() in path.read_bytes()] == []
    told = capfd.readouterr()
    assert secret not in told.out + told.err
