"""Databases of RelBench: read as graph tables, and their predictions scored by RelBench."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import raygnn
import raygnn.infer
import raygnn.train
from raygnn.config import load_config
from raygnn.data.manifest import Manifest
from raygnn.prepare.__main__ import main as prepare
from tests.errors import ids_of

NUM_USERS, NUM_VISITS = 40, 900
DAY = pd.Timedelta(days=1)
START = pd.Timestamp("2020-01-01")


def _write(folder: Path) -> dict[str, pd.DataFrame]:
    """A database of users, visits without a primary key, and pages, with three tasks."""
    rng = np.random.default_rng(0)
    day = np.sort(rng.integers(0, 300, NUM_VISITS))
    users = pd.DataFrame(
        {
            "user_id": np.arange(NUM_USERS) + 100,
            "city": rng.choice(["Rome", "Oslo"], NUM_USERS),
            "is_member": rng.integers(0, 2, NUM_USERS),
        }
    )
    page = rng.integers(0, 9, NUM_VISITS).astype(float)
    page[::50] = np.nan
    visits = pd.DataFrame(
        {
            "user": rng.integers(0, NUM_USERS, NUM_VISITS) + 100,
            "page": page,
            "seconds": rng.random(NUM_VISITS),
            "discount": np.where(day > 240, 0.1 * (day % 7), np.nan),  # none in training rows
            "at": START + day * DAY,
        }
    )
    pages = pd.DataFrame({"page_id": np.arange(8), "title": [f"page {i}" for i in range(8)]})
    tables = {"users": users, "visits": visits, "pages": pages}
    (folder / "db").mkdir(parents=True)
    for name, table in tables.items():
        table.to_parquet(folder / "db" / f"{name}.parquet")
    specs = {
        "users": {"pkey": "user_id", "time_col": None, "fkeys": {}},
        "visits": {"pkey": None, "time_col": "at", "fkeys": {"user": "users", "page": "pages"}},
        "pages": {"pkey": "page_id", "time_col": None, "fkeys": {}},
    }
    times = {"val_timestamp": "2020-07-01", "test_timestamp": "2020-09-01"}
    _dump(folder, {"name": "shop", **times, "tables": specs, "manifest_version": 1})
    asked = [START + 30 * i * DAY for i in range(2, 10)]
    rows = pd.DataFrame([(u, t) for t in asked for u in users.user_id], columns=["user", "date"])
    before = pd.Series(
        [
            ((visits.user == u) & (visits["at"] <= t) & (visits["at"] > t - 30 * DAY)).sum()
            for u, t in rows.itertuples(index=False)
        ]
    )
    of_users = {"kind": "forecast", "entity_table": "users", "entity_col": "user"}
    by_date = {"time_col": "date", "timedelta": "30 days", "sql": "SELECT 1"}
    busy = {**of_users, **by_date, "task_type": "binary_classification", "target_col": "busy"}
    _task(folder, "busy", busy, rows.assign(busy=(before > 2).astype(int)))
    member = {
        **of_users,
        "kind": "autocomplete",
        "task_type": "binary_classification",
        "target_col": "is_member",
        "remove_columns": [["visits", "seconds"]],
    }
    _task(folder, "user-member", {**member, **by_date}, rows.assign(is_member=1))
    recommended = {
        "kind": "forecast",
        "task_type": "recommendation",
        "src_entity_table": "users",
        "src_entity_col": "user",
        "dst_entity_table": "pages",
        "dst_entity_col": "page",
        "eval_k": 3,
        **by_date,
    }
    lists = [rng.choice(8, rng.integers(1, 4), replace=False) for _ in range(len(rows))]
    _task(folder, "user-page", recommended, rows.assign(page=lists))
    return tables


def _dump(folder: Path, content: dict[str, Any]) -> None:
    (folder / "manifest.yaml").write_text(yaml.safe_dump(content))


def _task(folder: Path, name: str, spec: dict[str, Any], rows: pd.DataFrame) -> None:
    path = folder / "tasks" / name
    path.mkdir(parents=True)
    _dump(path, {"name": name, **spec, "manifest_version": 1})
    bounds = [pd.Timestamp("2020-07-01"), pd.Timestamp("2020-09-01")]
    split = np.searchsorted(np.array(bounds, "M8[ns]"), rows.date.to_numpy("M8[ns]"), side="right")
    for code, part in enumerate(("train", "val", "test")):
        rows[split == code].reset_index(drop=True).to_parquet(path / f"{part}.parquet")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("relbench") / "shop"
    _write(folder)
    return folder


def test_a_database_becomes_a_graph(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(["relbench", str(database), "--out", str(tmp_path / "graph")]) == 0
    printed = capsys.readouterr().out
    assert "--task busy alone would also read users.is_member, visits.seconds" in printed
    assert "--task user-member alone" not in printed
    graph = Manifest.load(str(tmp_path / "graph"))
    types = {table.type: table for table in graph.edge_types}
    assert set(types) == {("visits", "user", "users"), ("visits", "page", "pages")}
    # Neither visits without a page, nor those of a page that is not there, are edges.
    visits = pd.read_parquet(database / "db" / "visits.parquet")
    edges = pd.read_parquet(tmp_path / "graph" / "edges" / "visits__page.parquet")
    assert len(edges) == (visits.page < 8).sum() < len(visits)
    assert graph.node_types["visits"].id == "row_id"
    # Labels of autocomplete tasks, columns that they must not see, and columns without values in
    # training are no features.
    assert "visits" not in {n for n, t in graph.node_types.items() if t.features}
    features = graph.node_types["users"].features["x"]
    assert features.column_names == ("city",)
    assert set(graph.training_tables) == {"busy", "user_member"}
    (links,) = graph.label_edges
    assert links.type == ("users", "user_page", "pages")
    assert links.time is not None
    rows = pd.read_parquet(tmp_path / "graph" / "label_edges" / "user_page.parquet")
    assert set(rows.columns) == {"user", "date", "page", "split"}
    assert rows.groupby(["user", "date"]).size().max() == 3


def test_chosen_tasks_keep_other_columns(database: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "graph")
    assert prepare(["relbench", str(database), "--out", out, "--task", "busy"]) == 0
    graph = Manifest.load(out)
    assert graph.node_types["users"].features["x"].column_names == ("city", "is_member")
    assert list(graph.training_tables) == ["busy"]


@pytest.mark.parametrize(("protocol", "is_frozen"), [([], True), (["--protocol", "live"], False)])
def test_test_rows_see_the_database_until_its_test_time_or_their_own(
    database: Path, tmp_path: Path, protocol: list[str], is_frozen: bool
) -> None:
    out = str(tmp_path / "graph")
    assert prepare(["relbench", str(database), "--out", out, "--task", "busy", *protocol]) == 0
    temporal = load_config(f"{out}/train.yaml").config.sampling.temporal
    assert temporal is not None
    assert list(temporal.until) == (["test"] if is_frozen else [])


def test_bad_folders_are_errors(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "graph")]
    assert prepare(["relbench", str(database), *out, "--task", "churn"]) == 2
    assert "prepare-relbench-task" in ids_of(capsys.readouterr().err)
    (tmp_path / "manifest.yaml").write_text("tables: {}")
    assert prepare(["relbench", str(tmp_path), *out]) == 2
    assert "lacks test_timestamp" in capsys.readouterr().err
    (tmp_path / "manifest.yaml").write_text("- 1")
    assert prepare(["relbench", str(tmp_path), *out]) == 2
    assert "prepare-relbench-manifest" in ids_of(capsys.readouterr().err)


SCORES = {"busy": {"roc_auc": "auroc"}, "user-page": {"map": "full_map@3"}}
COLUMNS = {"busy": {"probability_1": "busy"}, "user-page": {"neighbor_id": "page"}}


@pytest.mark.parametrize("task", SCORES)
def test_relbench_scores_the_predictions(task: str, database: Path, tmp_path: Path) -> None:
    """The score of RelBench's own package is that of `evaluate`, at the frozen test graph."""
    submit = pytest.importorskip("relbench.submit", reason="needs the package relbench")
    graph, table = tmp_path / "graph", task.replace("-", "_")
    prepare(["relbench", str(database), "--out", str(graph), "--task", task])
    settings = ["--run.storage_path", str(tmp_path), "--run.name", "run", "--training.max_epochs"]
    result = raygnn.train.fit(graph / "train.yaml", [*settings, "3"])
    out = str(tmp_path / "predicted.csv")
    asked = ["--table", table, "--split", "test", "--out", out]
    asked += ["--top-k", "3"] if task == "user-page" else ["--what", "probabilities"]
    assert raygnn.infer.main([str(result.path), "--data.uri", str(graph), *asked]) == 0
    names = {"id": "user", "time": "date", **COLUMNS[task]}
    pd.read_csv(out).rename(columns=names)[[*names.values()]].to_csv(out, index=False)
    scored = submit.evaluate_task(f"shop/{task}", out, str(database))
    for theirs, ours in SCORES[task].items():
        assert scored[theirs] == pytest.approx(result.metrics[f"test/{ours}"], abs=1e-6)
