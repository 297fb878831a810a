"""`training.refit`: a second training on training and validation rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import raygnn
import raygnn.train
from raygnn.config import load_config
from raygnn.data.ingest.build_bundle import ingest
from raygnn.data.ingest.plan_bundle import IngestOptions
from raygnn.data.tables.graph_tables import (
    GraphTables,
    TrainingRows,
    edge_rows,
    node_rows,
    write_tables,
)
from raygnn.loops.engine import Engine
from tests.errors import raises
from tests.rank_pool import RankPool
from tests.small_runs import (
    assert_equal_weights,
    check_workers_agree,
    run_rank,
    small_config,
    trained_weights,
)

_NUM_USERS, _NUM_ROWS = 300, 600


def _write(folder: Path, **changed: float) -> str:
    """Numbers of users that are greater from the first validation row on.

    `changed`: added to the labels of a split.
    """
    rng = np.random.default_rng(0)
    x, users = rng.random((_NUM_USERS, 2), np.float32), rng.integers(0, _NUM_USERS, _NUM_ROWS)
    at = np.sort(rng.integers(0, 100, _NUM_ROWS))
    rows = pd.DataFrame({"user": users, "at": at})
    rows["split"] = np.where(at < 50, "train", np.where(at < 75, "val", "test"))
    rows["y"] = 6 * x[users, 0] + 2 * (at >= 50) + 1.5 * rng.normal(size=_NUM_ROWS)
    for split, added in changed.items():
        rows.loc[rows.split == split, "y"] += added
    edges = edge_rows(*rng.integers(0, _NUM_USERS, (2, 200)), time=rng.integers(0, 100, 200))
    table = TrainingRows(rows, "user", "user", {"y": "y"}, "at", "split")
    nodes = {"user": node_rows(np.arange(_NUM_USERS), {"x": x})}
    tables = {"asked": table}
    graph = GraphTables(nodes, {("user", "knows", "user"): edges}, training_tables=tables)
    return write_tables(graph, str(folder / "graph"))


def _config(folder: Path, *, blend: bool | None, refit: bool = True) -> dict[str, Any]:
    return small_config(
        folder,
        task={"type": "node_classification", "args": {"blend": blend}},
        model={"type": "Hetero", "args": {"hidden_channels": 8, "dropout": 0.2}},
        metrics=["mae"],
        sampling={"fanouts": [4], "temporal": {"strategy": "last"}, "disjoint": True},
        optimizer={"args": {"lr": 0.02}},
        training={"max_epochs": 12, "refit": refit},
    )


def _train(folder: Path, *, refit: bool = True, blend: bool | None = None, **changed: float) -> Any:
    config = _config(folder, blend=blend, refit=refit)
    data = {"uri": _write(folder, **changed)}
    return raygnn.train.fit({**config, "data": data, "scaling": {"num_workers": 0}})


def test_validation_rows_are_learned_once_they_have_chosen(tmp_path: Path) -> None:
    straight = _train(tmp_path / "once", refit=False)
    result = _train(tmp_path / "refit")
    once, twice = straight.metrics, result.metrics
    of_val = [key for key in once if key.startswith("val/")]
    assert {key: once[key] for key in of_val} == {key: twice[key] for key in of_val}
    assert once["best_step"] == twice["best_step"]
    rows = pd.read_parquet(next((tmp_path / "refit" / "graph").rglob("*asked*/*.parquet")))
    num_train, num_both = (rows.split == "train").sum(), (rows.split != "test").sum()
    assert twice["refit_rows"] == num_both
    epochs = once["best_step"] / -(-num_train // 16)
    assert twice["refit_steps"] == round(epochs * -(-num_both // 16))
    key = "baseline/gnn/test/mae"
    assert twice[key] < once[key] - 0.1
    assert twice["test/mae"] < once["test/mae"]
    assert twice["blend"] == once["blend"]

    model = raygnn.load(str(tmp_path / "refit" / "run"))
    uri = str(tmp_path / "refit" / "graph")
    # Batches of another size sum errors in another order.
    assert model.evaluate(uri, split="test")["mae"] == pytest.approx(twice["test/mae"], rel=1e-12)
    record = json.loads((tmp_path / "refit" / "run" / "model.json").read_text())
    assert record["nodes"]["refitted"] == "model"
    assert "trained again on" in (tmp_path / "refit" / "run" / "report.html").read_text()


def test_no_test_label_is_read(tmp_path: Path) -> None:
    weights, trees = [], []
    for number, changed in enumerate(({}, {"test": 5.0}, {"val": 5.0})):
        folder = tmp_path / str(number)
        _train(folder, **changed)
        weights.append(trained_weights(_config(folder, blend=None)))
        text = folder / "run" / "lightgbm.txt"
        trees.append(text.read_text() if text.exists() else None)
    assert_equal_weights(weights[1], weights[0])
    assert trees[1] == trees[0]
    with pytest.raises(AssertionError):
        assert_equal_weights(weights[2], weights[0])


def test_workers_agree_and_a_stopped_refit_starts_again(ranks: RankPool, tmp_path: Path) -> None:
    bundle = ingest(_write(tmp_path), IngestOptions(), str(tmp_path / "cache"))
    path = str(bundle.path)

    def config(folder: Path, _: int) -> dict[str, Any]:
        made = _config(folder, blend=None)
        made["training"]["accumulate_grad_batches"] = 2
        made["callbacks"] = [{"on_train_step_end": "tests.numerics.test_refit.stop_in_refit"}]
        return made

    names = ("val/loss", "val/mae")
    _, weights = check_workers_agree(ranks, config, tmp_path, path, *names, in_bits=True)
    stopped = config(tmp_path / "stopped", 1)
    marker = tmp_path / "stopped" / "stop"
    marker.parent.mkdir()
    marker.touch()
    with pytest.raises(RuntimeError, match="stop here"):
        ranks.run(run_rank, 1, stopped, path)
    marker.unlink()
    ranks.run(run_rank, 1, stopped, path)
    assert_equal_weights(trained_weights(stopped), weights)


def stop_in_refit(engine: Engine, _: Any) -> None:
    marker = Path(engine.config.run.storage_path) / "stop"
    if engine.stop_at is not None and engine.position.step == 3 and marker.exists():
        raise ValueError("stop here")


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "link_prediction"},
        {"task": "self_supervised"},
        {"data": {"uri": "parts", "mode": "partitioned"}},
        {"lr_scheduler": {"type": "ReduceLROnPlateau", "monitor": "val/loss"}},
    ],
)
def test_other_runs_are_refused(changes: dict[str, Any]) -> None:
    config = {"data": {"uri": "graph"}, "model": "Hetero", "training": {"refit": True}}
    with raises("training-refit", "training.refit"):
        load_config({**config, **changes})
