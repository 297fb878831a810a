"""Runs on rows with weights: as on repeated rows, and the same bits on any number of workers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import raygnn.train
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.tables.graph_tables import (
    GraphTables,
    TrainingRows,
    edge_rows,
    node_rows,
    write_tables,
)
from tests.errors import raises
from tests.rank_pool import RankPool
from tests.small_runs import check_workers_agree, small_config

_NUM_USERS, _NUM_ROWS = 60, 400


def _tables(column: str | None, *, repeat: bool = False) -> GraphTables:
    """Users at times; heavy rows have other labels than light ones.

    `column`: the column of weights. `repeat`: each row as often as it weighs, in its split.
    """
    rng = np.random.default_rng(0)
    x = rng.random((_NUM_USERS, 3), np.float32)
    users = rng.integers(0, _NUM_USERS, _NUM_ROWS)
    weight = rng.choice([0, 1, 4], _NUM_ROWS, p=[0.1, 0.6, 0.3])
    label = (x[users, 0] > 0.5) ^ (weight == 4) ^ (rng.random(_NUM_ROWS) < 0.1)
    at = np.sort(rng.integers(0, 100, _NUM_ROWS))
    rows = pd.DataFrame({"user": users, "at": at, "y": label.astype(int), "weight": weight * 0.5})
    rows["split"] = np.where(at < 60, "train", np.where(at < 80, "val", "test"))
    if repeat:
        rows = rows.loc[np.repeat(np.arange(_NUM_ROWS), weight)]
    edges = edge_rows(*rng.integers(0, _NUM_USERS, (2, 300)), time=rng.integers(0, 100, 300))
    table = TrainingRows(rows, "user", "user", {"y": "y"}, "at", "split", weight=column)
    nodes = {"user": node_rows(np.arange(_NUM_USERS), {"x": x})}
    return GraphTables(nodes, {("user", "knows", "user"): edges}, training_tables={"asked": table})


def _config(folder: Path, tables: GraphTables, **args: Any) -> dict[str, Any]:
    """All training rows in one batch, and nothing random: repeated rows make the same steps."""
    return {
        "data": {"uri": write_tables(tables, str(folder / "graph"))},
        "task": {"type": "node_classification", "args": args},
        "model": {
            "type": "Hetero",
            "args": {"hidden_channels": 8, "dropout": 0},
            "relative_time": False,  # whose unit depends on the number of rows
        },
        "sampling": {"fanouts": [-1]},
        "loader": {"batch_size": 2000, "eval_batch_size": 64},
        "optimizer": {"args": {"lr": 0.02}},
        "training": {"max_epochs": 6, "ema_decay": None},
        "early_stopping": None,
        "metrics": ["auroc", "accuracy", "average_precision", "f1_macro"],
        "scaling": {"num_workers": 0},
        "run": {"storage_path": str(folder), "name": "run"},
    }


def test_weights_are_repeated_rows(tmp_path: Path) -> None:
    found = {}
    for name, column, repeat in (("weighed", "weight", False), ("repeated", None, True)):
        config = _config(tmp_path / name, _tables(column, repeat=repeat), past_labels=False)
        found[name] = raygnn.train.fit(config).metrics
    weighed, repeated = found["weighed"], found["repeated"]
    compared = [
        key
        for key in repeated
        if key.startswith(("val/", "train/loss", "baseline/", "test/loss"))
        and not any(part in key for part in ("lightgbm", "interval", "/gnn/"))
    ]
    of_baselines = [key for key in compared if "baseline/" in key]
    assert {key.split("/")[1] for key in of_baselines} >= {"entity_mean", "majority", "stratified"}
    expected = {key: repeated[key] for key in of_baselines}
    assert {key: weighed[key] for key in of_baselines} == pytest.approx(expected, rel=1e-9)
    of_gnn = [key for key in repeated if "/gnn/" in key and "val/" in key]
    assert of_gnn
    for key in of_gnn:
        assert weighed[key] == pytest.approx(repeated[key], rel=1e-4), key


@pytest.mark.parametrize("task", [{"blend": False}, {}])
def test_workers_agree_in_bits(ranks: RankPool, tmp_path: Path, task: dict[str, Any]) -> None:
    uri = write_tables(_tables("weight"), str(tmp_path / "graph"))
    bundle = ingest(uri, IngestOptions(), str(tmp_path / "cache"))

    def config(folder: Path, _: int) -> dict[str, Any]:
        return small_config(
            folder,
            task={"type": "node_classification", "args": task},
            model={"type": "Hetero", "args": {"hidden_channels": 8, "dropout": 0.3}},
            sampling__temporal={"strategy": "last"},
            sampling__disjoint=True,
            training__accumulate_grad_batches=2,
        )

    names = ("val/loss", "val/auroc", "val/accuracy", "val/f1_macro")
    check_workers_agree(ranks, config, tmp_path, str(bundle.path), *names, in_bits=True)


def test_losses_that_do_not_read_weights_are_refused(tmp_path: Path) -> None:
    config = _config(tmp_path, _tables("weight"))
    with raises("loss-row-weights"):
        raygnn.train.fit({**config, "losses": [{"type": "torch.nn.CrossEntropyLoss"}]})


def test_label_edges_have_weights(tmp_path: Path) -> None:
    """Heavy edges have large labels, so the weighted mean of the training edges is larger."""
    rng = np.random.default_rng(0)
    ends, weight = rng.integers(0, 40, (2, 300)), rng.choice([0.0, 1.0, 9.0], 300)
    stars = (weight + rng.random(300)).astype(np.float32)
    time = np.arange(300)
    liked = edge_rows(*ends, labels={"stars": stars}, weight=weight, time=time)
    nodes = {"user": node_rows(np.arange(40), {"x": rng.random((40, 2), np.float32)})}
    knows = edge_rows(*rng.integers(0, 40, (2, 100)), time=rng.integers(0, 300, 100))
    tables = GraphTables(
        nodes,
        {("user", "knows", "user"): knows},
        label_edges={(("user", "likes", "user"), "positive"): liked},
    )
    config = small_config(
        tmp_path,
        data={"uri": write_tables(tables, str(tmp_path / "graph"))},
        task={"type": "edge_prediction", "args": {"blend": False}},
        model={"type": "Hetero", "args": {"hidden_channels": 8}},
        metrics=["mae"],
        scaling={"num_workers": 0},
    )
    config["data"]["splits"] = {"type": "temporal", "quantiles": [0.6, 0.8]}
    metrics = raygnn.train.fit(config).metrics
    kept = weight > 0
    labels, weights = stars[kept], weight[kept]  # by time
    train, test = (
        slice(None, math.ceil(0.6 * len(labels))),
        slice(math.ceil(0.8 * len(labels)), None),
    )
    mean = np.average(labels[train], weights=weights[train])
    error = np.average(np.abs(labels[test] - mean), weights=weights[test])
    assert metrics["baseline/mean/test/mae"] == pytest.approx(error, rel=1e-5)
    assert metrics["test/mae"] > 0
